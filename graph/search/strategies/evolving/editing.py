"""Once a run, when its search has ended: the model rewrites one section of one expert's prompt, for later runs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from foundry.agents.expert import experts
from foundry.agents.prompt import PromptText, shipped_digest
from foundry.agents.prompt_text.findings import attempt_line
from foundry.graph.run.services import Services
from foundry.graph.search.strategies.evolving.advice import FROZEN
from foundry.graph.search.strategies.evolving.rewriting import PromptEditor, RewriteBrief, RewrittenSection, ask_editor
from foundry.graph.search.strategies.evolving.standing import MOST_ALIVE
from foundry.graph.search.strategies.evolving.texts import read_arms, uses_of
from foundry.knowledge.experience.variants import PromptVariant, Use, now, variant_id

LEAST_STEPS = 4  # fewest steps of an expert in this run in which a model answered; fewer are no evidence
STEP = "prompts"  # where its events stand in the trace


@dataclass(frozen=True)
class Evidence:
    """The brief for a rewrite, None if there is nothing to rewrite."""

    brief: RewriteBrief | None = None


@dataclass(frozen=True)
class Answer:
    """The rewritten section, None if the model gave none that may be used."""

    rewritten: RewrittenSection | None = None


async def _brief_to_rewrite(services: Services) -> RewriteBrief | None:
    """The brief to rewrite a section of the expert with the most steps in this run that has room for a variant.

    None if there is none, it has too few steps, or no model.
    """
    arms, uses = (await read_arms(services)).experts, uses_of(services.run, services.device.target)
    steps = {name: sum(len(use.gains) for use in uses if use.expert == name) for name in experts()}
    free = [name for name in steps if name not in FROZEN and len(arms.get(name, ())) < MOST_ALIVE]
    expert = max(free, key=lambda name: steps[name], default="")
    if not expert or steps[expert] < LEAST_STEPS or not services.request.models.of(expert):
        return None
    ahead = [arm for arm in arms.get(expert, ()) if arm.mean > 0.0]
    text = max(ahead, key=lambda arm: arm.mean).text if ahead else PromptText()
    here = tuple(_in_words(use) for use in uses if use.expert == expert)
    tried = _attempts(services, expert)
    return RewriteBrief(expert, services.device.target, text, arms.get(expert, ()), here, attempts=tried)


def _in_words(use: Use) -> str:
    """A line about one text: its steps, those without a correct child, and its best child."""
    best = math.exp(max(use.gains, default=0.0))
    return (
        f"{use.variant or 'the shipped text'}: {len(use.gains)} steps, {use.failed} without a correct child, "
        f"best child {best:.2f}x of its parent"
    )


def _attempts(services: Services, expert: str) -> tuple[str, ...]:
    """A line for each proposal of a model as this expert, with its result, in the order of the candidates."""
    return tuple(
        attempt_line(item.candidate.id, item.proposal, services.run.records(item.candidate.id))
        for item in services.run.decisions()
        if item.proposal is not None and item.proposal.expert == expert and item.proposal.brain != "playbook"
    )


async def rewrite(services: Services) -> None:
    """Lets the model rewrite one section, in one call paid from the run's budget and recorded in the journal.

    The variant joins the archive; this run does not use it.
    """
    brain = services.brain
    if not isinstance(brain, PromptEditor):
        return

    async def look() -> Evidence:
        """Collects the evidence about the run's prompts."""
        return Evidence(await _brief_to_rewrite(services))

    brief = (await services.journal.record("prompts/evidence", "outside", Evidence, look)).brief
    if brief is None:
        return

    async def think() -> Answer:
        """Asks the model to rewrite one section."""
        return Answer(await ask_editor(brain, brief))

    with services.log.at(None, STEP):
        found = (await services.journal.record("prompts/rewritten", "thought", Answer, think)).rewritten
        if found is None:
            return
        variant = _variant(brief, found, services)
        fresh = await _keep(variant, services)
        services.log.note_once(
            "note", "prompt rewritten", expert=brief.expert, variant=variant.id, section=found.section,
            model=variant.model, reason=found.reason, fresh=fresh,
        )  # fmt: skip


def _variant(brief: RewriteBrief, found: RewrittenSection, services: Services) -> PromptVariant:
    """The record of a new prompt variant: the brief's text with the rewritten section."""
    base = shipped_digest(experts()[brief.expert].prompt)
    sections = {**brief.text.sections, found.section: found.text}
    return PromptVariant(
        id=variant_id(brief.expert, brief.target, base, sections),
        expert=brief.expert,
        target=brief.target,
        sections=sections,
        changed=found.section,
        parent=brief.text.variant,
        base=base,
        model=services.request.models.of(brief.expert)[0],
        run=services.run.id,
        reason=found.reason,
        created=now(),
    )


async def _keep(variant: PromptVariant, services: Services) -> bool:
    """Adds the variant to the archive. False if it was there already, and without a store or in a replay."""
    if services.store is None or services.recorded is not None:
        return False
    return await asyncio.to_thread(services.store.prompts.add, variant)


async def teach(services: Services) -> None:
    """Records the gains of each text in this run in the archive; does nothing in a replay or without a store."""
    if services.store is None or services.recorded is not None:
        return
    uses: Sequence[Use] = uses_of(services.run, services.device.target)
    await asyncio.to_thread(services.store.prompts.note, uses)
