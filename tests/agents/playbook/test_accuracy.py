"""A candidate that is inaccurate because it multiplies in TF32 keeps its structure and becomes accurate in one step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.knowledge.compiler.cuda.test_module import H200
from tests.knowledge.compiler.test_accuracy import TASK, graph_of_task

from foundry.agents.brief import Brief
from foundry.agents.expert import experts
from foundry.agents.playbook.brain import PlaybookBrain, _Search
from foundry.agents.prompt_text.messages import step_prompt
from foundry.agents.situation import Situation
from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.lower import lower
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.opgraph import ProductRun
from foundry.knowledge.task import Policy
from foundry.knowledge.thought import Diagnosis, Proposal

GRAPH = graph_of_task("groups")
BOTH = ("k_conv1d", "k_conv1d_1")


def lowered(recipe: Recipe) -> Lowered:
    return lower([GRAPH], recipe, task_source=TASK, device=H200)


def brief_of(toy: Any, parent: Lowered, *elites: Lowered, outcome: str = "inaccurate") -> Brief:
    broken = toy.evaluation(parent.recipe, name="c8", outcome=outcome, error="norm error 1e-4")
    works = tuple(toy.evaluation(item.recipe, name=f"c{number}") for number, item in enumerate(elites, 1))
    brief: Brief = replace(toy.brief(parent=broken, elites=works), graph=GRAPH, lowered=parent, device=H200)
    return brief


async def repaired(brief: Brief) -> Proposal:
    brain = PlaybookBrain()
    found = await brain.diagnose(brief)
    proposal = await brain.propose("diagnostician", replace(brief, diagnosis=found))
    assert isinstance(proposal, Proposal) and proposal.recipe is not None
    return proposal


@pytest.mark.parametrize("rewrites", [(), ("pointwise-convolution-as-gemm",)])
async def test_all_products_become_accurate_at_once_and_the_structure_stays(toy: Any, rewrites: tuple[str]) -> None:
    parent = lowered(Recipe("cuda", rewrites=rewrites))
    assert parent.recipe.rounded == BOTH
    brief = brief_of(toy, parent)
    diagnosis = await PlaybookBrain().diagnose(brief)
    assert "k_conv1d, k_conv1d_1 multiply in TF32" in diagnosis.action
    proposal = await repaired(brief)
    assert {move.kernel for move in proposal.moves} == set(BOTH)
    assert "TF32 keeps 11 bits" in proposal.rationale
    child = lowered(proposal.recipe)  # type: ignore[arg-type]
    assert child.recipe.rounded == () and child.rewrites_applied == rewrites


async def test_only_what_a_working_relative_does_not_have_in_tf32_is_suspected(toy: Any) -> None:
    parent = lowered(Recipe("cuda"))
    relative = lowered(Recipe("cuda", accurate=("conv1d",)))
    assert relative.recipe.rounded == ("k_conv1d_1",)
    proposal = await repaired(brief_of(toy, parent, relative))
    assert lowered(proposal.recipe).recipe.rounded == ("k_conv1d_1",)  # type: ignore[arg-type]


async def test_no_repair_makes_a_product_less_accurate(toy: Any) -> None:
    parent = lowered(Recipe("cuda", accurate=("conv1d", "conv1d_1")))
    tried: set[str] = set()
    for _ in range(12):
        brief = replace(brief_of(toy, parent), tried=frozenset(tried))
        diagnosis = await PlaybookBrain().diagnose(brief)
        assert "TF32" not in diagnosis.action
        proposal = await PlaybookBrain().propose("diagnostician", replace(brief, diagnosis=diagnosis))
        if not isinstance(proposal, Proposal) or proposal.recipe is None:
            break
        tried |= {proposal.recipe.digest}
        assert proposal.recipe.rounded == ()
    assert tried


@pytest.mark.parametrize("rounds", [True, False])
async def test_no_step_brings_tf32_back_where_pytorch_does_not_use_it(toy: Any, rounds: bool) -> None:
    """It is faster and always refused, so each such step is an evaluation lost."""
    parent = lowered(Recipe("cuda", accurate=("conv1d", "conv1d_1")))
    runs = tuple(ProductRun(*size, is_rounded=rounds) for size in ((4 * 128 * 700, 80), (4 * 64 * 700, 64)))
    brief = replace(toy.brief(parent=toy.evaluation(parent.recipe)), graph=GRAPH, lowered=parent, device=H200)
    brief = replace(brief, baseline=replace(brief.baseline, products=runs))
    assert brief.obedience is not None
    situation, brain = Situation(brief, await PlaybookBrain().diagnose(brief)), PlaybookBrain()
    search = _Search(experts()["tiling"], situation, parent, brief.obedience, brain.library, brain._learn)
    values = {item.move.value for item in search.ranked if item.move.aspect == "precision"}
    assert values == ({"tf32", "ieee"} if rounds else {"ieee"})


@pytest.mark.parametrize(
    ("target", "policy", "is_told"), [("cuda", "fair", True), ("cuda", "strict", False), ("cpu", "fair", False)]
)
def test_a_model_is_told_which_products_pytorch_does_not_round(
    toy: Any, target: str, policy: Policy, is_told: bool
) -> None:
    brief = brief_of(toy, lowered(Recipe("cuda")))
    task = replace(brief.task, options=replace(brief.task.options, policy=policy))
    runs = (ProductRun(4 * 128 * 700, 80, is_rounded=False), ProductRun(4 * 64 * 700, 64, is_rounded=True))
    brief = replace(
        brief,
        task=task,
        device=H200 if target == "cuda" else toy.brief().device,
        baseline=replace(brief.baseline, products=runs),
    )
    said = "PyTorch computes 1 of 2 products without TF32, though it may use it (conv1d): compute these as accurately"
    text = step_prompt(brief, Diagnosis("c8", "inaccurate", None, "norm error 1e-4", "mend it"), ()).text
    assert (said in text) == ("without TF32" in text) == is_told
