"""The playbook on the real kernel compiler: every proposal lowers to a file that was not there before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.knowledge.compiler.algebra.run_graph import Sketch

from foundry.agents.directives import parse
from foundry.agents.expert import experts
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.agents.playbook.ranking import rank
from foundry.agents.route import ranking
from foundry.agents.situation import Situation
from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.lower import lower, seeds
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.compiler.moves import apply, moves, outline
from foundry.knowledge.thought import Directive, Role

SOURCE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(1024, 1024)

    def forward(self, x):
        return torch.softmax(torch.relu(x + self.fc.bias), dim=-1)
"""
ROLES: tuple[Role, ...] = ("fusion", "memory", "parameters", "algorithm")


class Search:
    """Evaluations are made up (each child is a little faster): only the steps are tested."""

    def __init__(self, toy: Any) -> None:
        self.toy = toy
        self.brain = PlaybookBrain()
        self.graph, self.device = toy.brief().graph, toy.brief().device
        self.tried: set[str] = set()
        self.files: set[str] = set()
        self.duplicates = 0

    def lowered(self, recipe: Recipe) -> Lowered:
        """The recipe's candidate; both its digests count as tried, as in a run."""
        found = lower([self.graph], recipe, task_source=SOURCE, device=self.device)
        self.tried |= {recipe.digest, found.recipe.digest}
        self.duplicates += found.source in self.files
        self.files.add(found.source)
        return found

    async def step(self, number: int, parent: Lowered, **changes: Any) -> Any:
        evaluation = self.toy.evaluation(parent.recipe, name=f"c{number}", candidate_ms=6.0 - 0.05 * number)
        brief = replace(
            self.toy.brief(parent=evaluation, step=f"i0g{number}", role=ROLES[number % 4]),
            lowered=parent,
            tried=frozenset(self.tried),
            **changes,
        )
        diagnosis = await self.brain.diagnose(brief)
        for expert in ranking(brief, diagnosis):
            proposal = await self.brain.propose(expert, replace(brief, diagnosis=diagnosis))
            if proposal is not None:
                return proposal
        return None


async def test_thirty_steps_on_the_real_library_are_legal_new_and_reasoned(toy: Any) -> None:
    search = Search(toy)
    first, *others = [search.lowered(recipe) for recipe in seeds(search.graph, search.device)]
    search.duplicates = 0
    parent = others[0] if others else first
    for number in range(1, 31):
        proposal = await search.step(number, parent)
        assert proposal is not None and proposal.recipe.digest not in search.tried
        assert "GB/s" in proposal.rationale and proposal.expected
        parent = search.lowered(proposal.recipe)  # raises CannotLower for an illegal step
    assert search.duplicates == 0


async def test_a_step_back_to_a_seed_is_known_before_it_is_taken(toy: Any) -> None:
    """Five of the 27 proposals of a recorded run led to a file that was there, two of them to a first candidate: the
    choices of the kernels that a change of structure had removed made them look new."""
    search = Search(toy)
    seed = search.lowered(seeds(search.graph, search.device)[0])
    split = next(move for move in moves(seed) if move.kind == "split" and move.name == "relu")
    child = search.lowered(apply(seed.recipe, split))
    back = apply(child.recipe, next(move for move in moves(child) if move.kind == "fuse"))
    assert back.digest != seed.recipe.digest
    assert outline(back, search.graph, search.device).recipe.digest == seed.recipe.digest
    for number in range(1, 60):
        proposal = await search.step(number, child)
        assert proposal is not None and proposal.recipe.digest not in search.tried
        search.lowered(proposal.recipe)
    assert search.duplicates == 0


@pytest.mark.parametrize("text", ["@tiling unroll 8", "@fusion split relu", "@tiling schedule=static"])
async def test_directives_shape_real_candidates(toy: Any, text: str) -> None:
    search = Search(toy)
    said = parse(text)
    assert isinstance(said, Directive)
    directive = replace(said, id=1)
    parent = search.lowered(seeds(search.graph, search.device)[0])
    for number in range(1, 6):
        proposal = await search.step(number, parent, directives=(directive,))
        parent = search.lowered(proposal.recipe)
        assert "d1" in proposal.cites
        if said.verb == "split":
            assert "relu" in parent.materialised
        else:
            chosen = [kernel.choices.get(str(said.command["name"])) for kernel in parent.kernels]
            assert said.command["value"] in chosen


async def test_a_rewrite_that_leaves_little_of_the_work_comes_first(toy: Any) -> None:
    sketch = Sketch()
    product = sketch.call("aten.linear.default", sketch.input(64, 96), sketch.weight(128, 96), flops=2 * 64 * 96 * 128)
    graph = sketch.graph(sketch.call("aten.sum.dim_IntList", product, [1]))
    device = toy.brief().device
    lowered = lower([graph], Recipe("cpu"), task_source=SOURCE, device=device)
    brief = replace(toy.brief(parent=toy.evaluation(lowered.recipe)), graph=graph, lowered=lowered)
    ranked = rank(moves(lowered), experts()["fusion"], Situation(brief, await PlaybookBrain().diagnose(brief)))
    assert ranked[0].move.name == "sum-before-product" and "99 % of the arithmetic" in ranked[0].opinion.because
