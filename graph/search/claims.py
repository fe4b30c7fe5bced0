"""The file that a proposal means, and the right to evaluate it."""

from __future__ import annotations

from typing import Any

from foundry.graph.run.services import Services
from foundry.knowledge.candidate import Recipe
from foundry.knowledge.thought import Proposal, apply_edits


def claim_evaluation(digest: str, step: str, services: Services) -> dict[str, Any]:
    """The right to evaluate a text, and why the budget refuses it, if so."""
    if refused := services.ledger.why_no_claim(digest):
        return {"candidate": "", "fresh": False, "refused": refused}
    return {**services.run.claim_as_plain(digest, step), "refused": ""}


async def text_of(proposal: Proposal, parent_text: str, services: Services) -> tuple[str, Recipe | None]:
    """(text of the proposed file, its recipe or None). Raises CannotLower, or ValueError for edits that do not fit the
    parent or change nothing."""
    if proposal.recipe is not None:
        lowered = await services.lower_to_try(proposal.recipe)
        return lowered.source, lowered.recipe
    if proposal.source:
        return proposal.source, None
    text = apply_edits(parent_text, proposal.edits)
    if text == parent_text:
        raise ValueError(f"proposal {proposal.id} changes nothing")
    return text, None
