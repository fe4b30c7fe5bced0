"""The tuner in the search: a proposal to tune becomes one with the numbers that the tuner found.

What it measured is journalled like any measurement, so that a resumed or replayed run takes the same numbers. The
candidate that they make walks the one path; no time of the tuner's is a result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from foundry.agents.brief import Brief
from foundry.agents.tuning import obedient, settings_between, tuned_mark
from foundry.graph.run.services import Services
from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.thought import Move, Proposal

SHARE = 0.35  # most of the search's remaining time for the tuner at once
LEAST_S = 2.0  # seconds; in less the tuner tries too little


@dataclass(frozen=True)
class Numbers:
    """Better numbers from the tuner: the recipe with them, and the moves to it."""

    recipe: Recipe
    moves: tuple[Move, ...]
    told: str
    expected: str


@dataclass(frozen=True)
class NoNumbers:
    """No better numbers; `reason` is a clause."""

    reason: str


async def with_numbers(proposal: Proposal, brief: Brief, services: Services) -> Proposal | None:
    """The proposal with the tuner's numbers; None if there are no better ones."""
    found = await find_numbers(brief, brief.lowered, services)
    if isinstance(found, NoNumbers):
        return None
    rationale = f"{proposal.rationale} {found.told}"
    return replace(proposal, recipe=found.recipe, moves=found.moves, rationale=rationale, expected=found.expected)


async def find_numbers(brief: Brief, before: Lowered | None, services: Services) -> Numbers | NoNumbers:
    """The tuner's numbers for a kernel, the parent or a draft of this step, or why there are none."""
    if before is None:
        return NoNumbers("a whole file has no tunables that the tuner knows")
    if not any(len(item.values) > 1 for kernel in before.kernels for item in kernel.tunables):
        return NoNumbers("the kernel declares no tunable with more than one value")
    mark, is_parent = tuned_mark(before), before is brief.lowered
    key = f"{brief.step}/tuning" if is_parent else f"{brief.step}/tuning/{before.structure}"
    claim = services.journal.plain(key, "outside", lambda: _claim(mark, brief.tune_s, services))
    services.run.add_tried([mark])
    if not claim["fresh"]:
        return NoNumbers("its tunables were swept before in this run: `history` has what came of it")
    if claim["seconds"] < LEAST_S:
        return NoNumbers(f"the search has {claim['seconds']:.1f} s left for it, and {LEAST_S:g} s are the least")
    hints = {credit.move: credit.effect for credit in brief.credits}
    found = await services.measure.tune(before.recipe, claim["seconds"], seed=services.request.seed, hints=hints)
    log = services.run.path / f"tuner-{before.structure}.log"
    services.run.write(log, "".join(f"{line}\n" for line in found.log).encode())
    services.log.note_once(
        "note",
        "tuned",
        parent=brief.parent.candidate.id if is_parent else "draft",
        tried=found.tried,
        failed=found.failed,
        seconds=round(found.seconds, 1),
        expected_gain=round(found.expected_gain, 3),
        log=log.name,
        by="the tuner's own clock: no result",
    )
    try:
        after = await services.lower(obedient(found.recipe, before, brief.obedience))
    except CannotLower as error:
        return NoNumbers(f"the best numbers cannot be printed: {error}")
    failed = f", {found.failed} of which failed" if found.failed else ""
    told = f"The tuner tried {found.tried} configurations{failed} in {found.seconds:.0f} s."
    if after.recipe.digest == before.recipe.digest:
        return NoNumbers(f"of {found.tried} configurations{failed} none was faster than the numbers that it has")
    whose = "the parent's" if is_parent else "the draft's"
    return Numbers(
        after.recipe,
        tuple(settings_between(before, after)),
        told,
        f"about {found.expected_gain:.2f}x {whose} speed, by the tuner's own clock",
    )


def _claim(mark: str, most_s: float, services: Services) -> dict[str, Any]:
    """{"fresh": True if this structure was not tuned yet, "seconds": the tuner's time}."""
    spent, allowed = services.ledger.spent(), services.ledger.allowed()
    left_s = 60 * (allowed.minutes - spent.minutes)
    return {"fresh": mark not in services.run.tried()[1], "seconds": round(min(most_s, SHARE * left_s), 1)}
