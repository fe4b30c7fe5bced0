"""Prompts that evolve: a step is asked with one of several texts of an expert's advice, by what each has brought; when
the search has ended, the model rewrites one section for later runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from foundry.graph.search.strategies.evolving.editing import rewrite, teach
from foundry.graph.search.strategies.evolving.texts import choose_text
from foundry.graph.search.strategy import Here, Strategy

if TYPE_CHECKING:
    from foundry.agents.brief import Brief
    from foundry.knowledge.candidate import Evaluation
    from foundry.knowledge.thought import ExpertName


class EvolvingPrompts(Strategy):
    async def propose(self, here: Here, brief: Brief, expert: ExpertName) -> Brief:
        """The brief with the text that this expert is asked with at this step; unchanged before an expert is chosen."""
        return replace(brief, prompt=await choose_text(here.services, expert, brief.step)) if expert else brief

    async def learn(self, here: Here, child: Evaluation | None) -> str:
        """At the end of the search (child None) has the model rewrite a prompt section for later runs.

        Archives what each text brought in this run. Returns the memory unchanged.
        """
        if child is None:
            await rewrite(here.services)
            await teach(here.services)
        return here.memory


STRATEGY = EvolvingPrompts()
