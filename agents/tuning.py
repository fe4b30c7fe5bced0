"""The step that hands a structure to the tuner: it sweeps every kernel's numbers, which no expert has to guess then."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from foundry.agents.brief import Brief
from foundry.agents.expert import experts
from foundry.agents.obedience import Obedience
from foundry.agents.situation import Situation
from foundry.agents.steps import setting
from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.thought import ExpertName, Move, Proposal

REASON = "the structure is new, so the tuner sweeps the numbers of all its kernels before single ones are changed"
TUNE = Move("tune", "tile", "every kernel", reason=REASON)


def tuned_mark(lowered: Lowered) -> str:
    """The mark among the tried digests that a structure was handed to the tuner."""
    return f"tuned:{lowered.structure}"


def is_untuned(brief: Brief) -> bool:
    """True if the tuner could still sweep the parent's structure; False while a directive has to be followed first."""
    if brief.lowered is None or brief.tune_s <= 0 or is_tuned(brief):
        return False
    correct = brief.parent.verdict is not None and brief.parent.verdict.correct
    has_numbers = any(len(item.values) > 1 for kernel in brief.lowered.kernels for item in kernel.tunables)
    has_orders = bool(brief.obedience and brief.obedience.required)
    return correct and has_numbers and not has_orders and _can_win(brief)


def _can_win(brief: Brief) -> bool:
    """True if the structure could beat the best kernel: moving its bytes alone takes less time."""
    best_ms = min((item.timing.candidate_ms for item in brief.elites if item.timing), default=math.inf)
    return Situation(brief).memory_ms < best_ms


def is_tuned(brief: Brief) -> bool:
    """True if the tunables of the parent's structure were swept in this run."""
    return brief.lowered is not None and tuned_mark(brief.lowered) in brief.tried


def tuning_step(expert: ExpertName, brief: Brief) -> Proposal | None:
    """The expert's proposal to tune the parent; None for an expert that does not, and where it was done."""
    if not experts()[expert].tunes or brief.lowered is None or not is_untuned(brief):
        return None
    kernels = [kernel for kernel in brief.lowered.kernels if any(len(item.values) > 1 for item in kernel.tunables)]
    return Proposal(
        id=f"{brief.step}.{expert}",
        expert=expert,
        parent=brief.parent.candidate.id,
        rationale=f"Tune: {REASON}.",
        expected=f"better numbers for {len(kernels)} kernels at the same traffic",
        moves=(TUNE,),
        recipe=brief.lowered.recipe,
    )


def asks_tuner(proposal: Proposal) -> bool:
    """True if one of the moves is of kind "tune"."""
    return any(move.kind == "tune" for move in proposal.moves)


def obedient(recipe: Recipe, before: Lowered, obedience: Obedience | None) -> Recipe:
    """The tuner's recipe, with the values that a user's directive forbids set back to those of `before`."""
    if obedience is None:
        return recipe
    choices: dict[str, dict[str, Choice]] = {name: dict(values) for name, values in recipe.choices.items()}
    for kernel in before.kernels:
        for tunable in kernel.tunables:
            found = choices.get(kernel.name, {})
            if tunable.name in found and obedience.forbids(setting(kernel, tunable, found[tunable.name])) is not None:
                found[tunable.name] = kernel.choices.get(tunable.name, tunable.default)
    return replace(recipe, choices=choices)


def settings_between(before: Lowered, after: Lowered) -> Iterator[Move]:
    """The numbers that differ, as moves: experience is filed under them. What only the other algorithm of a kernel
    has is part of that algorithm."""
    known = {kernel.name: kernel for kernel in before.kernels}
    for kernel in after.kernels:
        was = known.get(kernel.name)
        for tunable in was.tunables if was else ():
            value = kernel.choices.get(tunable.name)
            if was is not None and value is not None and value != was.choices.get(tunable.name, tunable.default):
                yield setting(was, tunable, value)
