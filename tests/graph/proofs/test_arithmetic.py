"""Kernels in TF32 that are less accurate than PyTorch: the run ends accepted, with little of its budget lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foundry.graph.history.replay import replay
from foundry.graph.proofs.causes import kin_of
from foundry.graph.run.closing import EARLY
from foundry.graph.run.events import Event
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.search.first_texts import ARITHMETIC
from foundry.graph.solve import solve
from foundry.knowledge.candidate import Build, Candidate, Choice, Recipe, Stage, Verdict
from foundry.knowledge.compiler.ir.kernels import Tunable

MakeRequest = Callable[..., SolveRequest]
PRECISION = Tunable("precision", ("tf32", "tf32x3", "ieee"), "tf32", "precision", "bits of a product")
GATE = "few huge elements"


@pytest.fixture
def tensor_cores(library: Any) -> Any:
    """A library whose kernel multiplies, in TF32 by default."""

    class TensorCores(library):  # type: ignore[misc]
        def lower(self, graphs: Any, recipe: Recipe, *, task_source: str, device: Any) -> Any:
            wanted = recipe.choices.get("k0", {}).get("precision", "tf32x3" if recipe.accurate else "tf32")
            found = super().lower(graphs, recipe, task_source=task_source, device=device)
            (kernel,) = found.kernels
            choices: dict[str, Choice] = {**kernel.choices, "precision": wanted}
            kernel = replace(kernel, choices=choices, tunables=(PRECISION, *kernel.tunables))
            text = f"# kernel {json.dumps([sorted(found.rewrites_applied), choices], sort_keys=True)}\n"
            whole = replace(found.recipe, choices={"k0": choices}, accurate=recipe.accurate)
            return replace(found, recipe=whole, source=text, kernels=(kernel,))

        def apply(self, recipe: Recipe, move: Any) -> Recipe:
            changed: Recipe = super().apply(recipe, move)
            return replace(changed, accurate=recipe.accurate)

    return TensorCores()


@pytest.fixture
def careful(machine: Any) -> Callable[..., Any]:
    """A machine that refuses TF32, in the screen or in proofs alone."""

    def make(*, refuses: tuple[Stage, ...]) -> Any:
        class Careful(machine):  # type: ignore[misc]
            async def verify(self, text: str, build: Build, stage: Stage) -> Verdict:
                found: Verdict = await super().verify(text, build, stage)
                if found.correct and stage in refuses and '"precision": "tf32"' in text:
                    return replace(found, outcome="inaccurate", evidence=f"{GATE}: the norm error is 1.2e-04")
                return found

        bench = Careful()
        bench.device = replace(bench.device, target="cuda")
        return bench

    return make


@pytest.mark.parametrize("refuses", [("full", "final"), ("screen", "full", "final")])
async def test_the_same_structure_with_accurate_products_comes_next_and_wins(
    make_request: MakeRequest, parts: Any, careful: Any, tensor_cores: Any, refuses: tuple[Stage, ...]
) -> None:
    events: list[Event] = []
    summary = await solve(make_request(24), events.append, parts=parts(careful(refuses=refuses), library=tensor_cores))
    assert summary.verdict == "accepted"
    order = [event.name for event in events if event.kind == "evaluation" and event.data["expert"] != EARLY]
    first, second = made_in(summary.run, order[0]), made_in(summary.run, order[1])
    assert kin_of(first).rounded == {"k0"} and not kin_of(second).rounded, "it was not mended at once"
    assert first.recipe is not None and second.recipe is not None
    assert (first.recipe.rewrites, first.recipe.materialise) == (second.recipe.rewrites, second.recipe.materialise)
    said = [event.data["reason"] for event in events if event.name == ARITHMETIC]
    assert said[0].startswith(f"{order[0]} is inaccurate, and k0 multiplies in TF32: {order[1]} has accurate products")


def made_in(folder: str, name: str) -> Candidate:
    run = RunDirectory.inspect(Path(folder))
    try:
        return run.evaluation(name).candidate
    finally:
        run.close()


async def test_an_early_proof_says_which_arithmetic_was_inaccurate(
    make_request: MakeRequest, parts: Any, careful: Any, tensor_cores: Any
) -> None:
    events: list[Event] = []
    bench = careful(refuses=("full", "final"))
    await solve(make_request(12), events.append, parts=parts(bench, library=tensor_cores))
    early = [event.data for event in events if event.name == EARLY]
    assert early[0]["reason"].endswith("k0 multiplies in TF32; accurate products are tried next")
    assert early[1]["gate"] == "", "the accurate one was not proven"


async def test_without_early_proofs_an_accurate_finalist_is_proven_before_more_in_tf32(
    make_request: MakeRequest, parts: Any, careful: Any, tensor_cores: Any
) -> None:
    """A bench asks for no early proof, and its fastest candidates are all in TF32."""
    bench = careful(refuses=("final",))
    summary = await solve(make_request(24, effort="bench"), parts=parts(bench, library=tensor_cores))
    run = RunDirectory.inspect(Path(summary.run))
    ranked = [kin_of(run.evaluation(name).candidate) for name in run.ranking(64)]
    run.close()
    assert not all(kin.rounded for kin in ranked), "the search tried no accurate kernel"
    assert summary.verdict == "accepted"


async def test_a_run_that_mended_its_arithmetic_replays(
    make_request: MakeRequest, parts: Any, careful: Any, tensor_cores: Any
) -> None:
    bench = careful(refuses=("full", "final"))
    summary = await solve(make_request(16), parts=parts(bench, library=tensor_cores))
    assert (await replay(Path(summary.run), parts(bench, library=tensor_cores))).differences == ()
