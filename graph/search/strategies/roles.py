"""Roles: each island prefers moves of its own kind. A role that a user gave an island counts first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from foundry.graph.search.strategy import Here, Strategy

if TYPE_CHECKING:
    from foundry.agents.brief import Brief
    from foundry.knowledge.thought import ExpertName, Role

ROLES: tuple[Role, ...] = ("fusion", "memory", "parameters", "algorithm")


class Roles(Strategy):
    async def propose(self, here: Here, brief: Brief, expert: ExpertName) -> Brief:
        """The brief with the role of its island's number, unless the user gave the island a role."""
        return replace(brief, role=ROLES[brief.island % len(ROLES)]) if brief.role == "any" else brief


STRATEGY = Roles()
