"""Chooses the text of an expert's prompt for each step of a run, and reads the gains of the texts."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping

from foundry.agents.expert import experts
from foundry.agents.models.models import PLAYBOOK
from foundry.agents.prompt import SHIPPED, PromptText
from foundry.graph.run.events import EventLog
from foundry.graph.run.model_records import gain_of
from foundry.graph.run.run_directory import Decision, RunDirectory
from foundry.graph.run.services import Services
from foundry.graph.search.strategies.evolving.advice import FROZEN, is_usable
from foundry.graph.search.strategies.evolving.standing import (
    FAILED_GAIN,
    MOST_ALIVE,
    Arms,
    VariantStanding,
    draw,
    standing_of,
)
from foundry.knowledge.device import TargetName
from foundry.knowledge.experience.variants import PromptVariant, Use, VariantArchive
from foundry.knowledge.merit import CORRECT

ARMS = "prompts/arms"  # the journal's key of a run's texts
HEARD = ("answered", "repaired", "failed")  # outcomes of calls that the model answered


async def choose_text(services: Services, expert: str, step: str) -> PromptText:
    """The text of this step, drawn once from the texts with which the run began.

    A resumed run and a replay get the same. The playbook and FROZEN experts get the shipped text.
    """
    if services.brain.name == PLAYBOOK or expert in FROZEN:
        return PromptText()
    arms = (await read_arms(services)).experts.get(expert, ())
    texts = {arm.text.variant: arm.text for arm in (VariantStanding(PromptText()), *arms)}
    stream = services.stream(f"{step}:{expert}:prompt")
    chosen = services.journal.plain(text_key(step, expert), "outside", lambda: draw(arms, stream).variant)
    return texts[str(chosen)]


def text_key(step: str, expert: str) -> str:
    """The journal's key of the text with which an expert was asked at a step."""
    return f"{step}/prompt/{expert}"


async def read_arms(services: Services) -> Arms:
    """The variants that may be used in this run, by expert; read from the archive at the first call."""

    async def look() -> Arms:
        """Reads the living variants of each prompt from the store and notes them in the trace."""
        if services.store is None:
            return Arms()
        archive, target = services.store.prompts, services.device.target
        found = await asyncio.to_thread(alive, archive, target)
        services.log.note(
            "retrieval", "prompts", variants={name: [it.words for it in them] for name, them in found.items()}
        )
        return Arms(found)

    return await services.journal.record(ARMS, "outside", Arms, look)


def standings(archive: VariantArchive, target: TargetName) -> list[tuple[PromptVariant, VariantStanding]]:
    """(variant, standing) of every usable variant for a target, oldest first."""
    uses: Mapping[str, list[Use]] = defaultdict(list)
    for use in archive.uses():
        if use.target == target:
            uses[use.expert].append(use)
    usable = [item for item in archive.variants() if item.target == target and is_usable(item)]
    return [(item, standing_of(item, uses[item.expert])) for item in usable]


def alive(archive: VariantArchive, target: TargetName) -> dict[str, tuple[VariantStanding, ...]]:
    """The variants that were not dropped, by expert, the best first; at most MOST_ALIVE each."""
    found: dict[str, list[VariantStanding]] = {name: [] for name in experts() if name not in FROZEN}
    for variant, standing in standings(archive, target):
        if not standing.is_dropped:
            found[variant.expert].append(standing)
    return {name: tuple(sorted(them, key=lambda item: -item.mean)[:MOST_ALIVE]) for name, them in found.items()}


def uses_of(run: RunDirectory, target: TargetName) -> list[Use]:
    """The gains of each text in a run so far, over steps in which the model answered, rightly or not."""
    log = read_calls(run)
    merits = {row[0]: row[1] for row in run.database.run("SELECT candidate, merit FROM evaluations ORDER BY at")}
    made = {item.step: item for item in run.decisions() if item.proposal is not None}
    gains: dict[tuple[str, str], list[float | None]] = defaultdict(list)
    for (step, expert), heard in sorted(log.items()):
        if heard:
            variant = _recorded(run, step, expert)
            gains[expert, variant].append(_gain(made.get(step), expert, merits))
    return [
        Use(
            run.id,
            expert,
            target,
            variant,
            tuple(FAILED_GAIN if gain is None else round(gain, 4) for gain in found),
            failed=found.count(None),
        )
        for (expert, variant), found in sorted(gains.items())
    ]


def read_calls(run: RunDirectory) -> dict[tuple[str, str], bool]:
    """{(step, expert): True if the model answered} of every step for which a model was asked."""
    found: dict[tuple[str, str], bool] = {}
    for event in EventLog(run.database, reading=True).read("expert"):
        if event.data.get("purpose") == "propose" and "outcome" in event.data:
            found[event.step, event.name] = event.data["outcome"] in HEARD
    return found


def _recorded(run: RunDirectory, step: str, expert: str) -> str:
    """The id of the text that an expert was asked with at a step; SHIPPED if the journal has none."""
    rows = run.database.run("SELECT value FROM journal WHERE key = ?", (text_key(step, expert),))
    return str(json.loads(rows[0][0])) if rows else SHIPPED


def _gain(decision: Decision | None, expert: str, merits: Mapping[str, float]) -> float | None:
    """Logarithm of the child's speedup over its parent's, 0 if it is no faster; None without a correct child."""
    proposal = decision.proposal if decision else None
    if decision is None or proposal is None or proposal.expert != expert or proposal.brain == PLAYBOOK:
        return None
    child, parent = (merits.get(name, 0.0) - CORRECT for name in (decision.candidate.id, proposal.parent))
    return gain_of(child, parent) if child > 0.0 else None
