"""Credits: the playbook prefers moves by the gain that a regression over earlier steps ascribes to each of them
(knowledge/experience/credit.py)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from foundry.graph.search.strategy import Here, Strategy

if TYPE_CHECKING:
    from foundry.agents.brief import Brief
    from foundry.knowledge.thought import ExpertName

POWER = 4.0  # a credit of 1.2 counts like a card's weight of 2


class Credits(Strategy):
    async def propose(self, here: Here, brief: Brief, expert: ExpertName) -> Brief:
        """The brief with each credited move weighted by exp(POWER * its log effect), in place of its former weight."""
        credited = {credit.move: math.exp(POWER * credit.log_effect) for credit in brief.credits}
        return replace(brief, weights={**brief.weights, **credited})


STRATEGY = Credits()
