"""Small briefs built by hand and a toy library: the experts' reasoning is tested without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.agents.chat.scripted_server import ScriptedServer

from foundry.agents.brief import Brief
from foundry.knowledge.candidate import (
    Audit,
    Baseline,
    Build,
    Candidate,
    Choice,
    Evaluation,
    Profile,
    Recipe,
    Resources,
    Timing,
    Verdict,
)
from foundry.knowledge.compiler.ir.kernels import KernelSummary, Tunable
from foundry.knowledge.compiler.lowered import Lowered, Outline
from foundry.knowledge.device import Ceilings, Device
from foundry.knowledge.opgraph import Op, OpGraph, Ref, TensorSpec, Value, contiguous_strides
from foundry.knowledge.task import Task
from foundry.knowledge.thought import Move

MB = 1_000_000
ROWS, COLUMNS = 4096, 1024  # 16.8 MB of float32
PARENT = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x * 2.0\n"
BLOCK = Tunable("block", (16, 32, 64, 128, 256), 32, "tile", "more rows an item")
UNROLL = Tunable("unroll", (1, 2, 4, 8), 1, "vector", "more loads in flight")
PASSES = Tunable("passes", ("two", "online"), "two", "algorithm", "online reads the row once")
THREADS = Tunable("threads", (1, 2), 2, "parallel", "more cores")
TILE_M = Tunable("tile_m", (32, 64, 128), 64, "tile", "more reuse")
TILE_N = Tunable("tile_n", (32, 64, 128, 256), 64, "tile", "more reuse")
RELU_BLOCK = Tunable("block", (64, 256), 64, "tile", "more elements an item")


def spec(*shape: int) -> TensorSpec:
    return TensorSpec(shape, contiguous_strides(shape), "float32")


def graph() -> OpGraph:
    """softmax(relu(x + fc.bias))"""
    x = Value("x", spec(ROWS, COLUMNS), "input", "0")
    bias = Value("p_bias", spec(COLUMNS), "parameter", "fc.bias")
    values = [Value(name, spec(ROWS, COLUMNS), "op") for name in ("add", "relu", "softmax")]
    ops = [
        Op("aten.add.Tensor", [Ref("x"), Ref("p_bias")], {}, [values[0]], flops=ROWS * COLUMNS),
        Op("aten.relu.default", [Ref("add")], {}, [values[1]], flops=ROWS * COLUMNS),
        Op("aten.softmax.int", [Ref("relu"), -1], {}, [values[2]], flops=5 * ROWS * COLUMNS),
    ]
    return OpGraph([x], [bias], ops, [Ref("softmax")], tracer="export")


class ToyLibrary:
    """One row kernel, a second map kernel when `relu` is materialised, one exact rewrite."""

    def lower(self, recipe: Recipe) -> Lowered:
        split = "relu" in recipe.materialise
        size = 4 * ROWS * COLUMNS
        kernels = [self._kernel("k0", "row", ("softmax",) if split else ("add", "relu", "softmax"), recipe, 2 * size)]
        if split:
            kernels.insert(0, self._kernel("k1", "map", ("add", "relu"), recipe, 2 * size))
        complete = {kernel.name: dict(kernel.choices) for kernel in kernels}
        return Lowered(
            recipe=replace(recipe, choices=complete),
            source=PARENT,
            kernels=tuple(kernels),
            fused=("add",) if split else ("add", "relu"),
            materialised=("relu",) if split else (),
            rewrites_applied=recipe.rewrites,
            rewrites_open=tuple(name for name in ("shift_invariance",) if name not in recipe.rewrites),
            labels=(),
            flops=7 * ROWS * COLUMNS,
            traffic_bytes=2 * size,
        )

    def _kernel(self, name: str, template: str, ops: tuple[str, ...], recipe: Recipe, traffic: int) -> KernelSummary:
        tunables = (BLOCK, UNROLL, PASSES, THREADS) if template == "row" else (RELU_BLOCK,)
        chosen = recipe.choices.get(name, {})
        choices: dict[str, Choice] = {item.name: chosen.get(item.name, item.default) for item in tunables}
        return KernelSummary(name, template, ops, choices, tunables, flops=2 * traffic, traffic_bytes=traffic)

    def moves(self, lowered: Lowered) -> tuple[Move, ...]:
        found = []
        for kernel in lowered.kernels:
            for item in kernel.tunables:
                was = kernel.choices[item.name]
                found += [
                    Move("set", item.aspect, item.name, kernel.name, kernel.template, value, was, item.meaning)
                    for value in item.values
                    if value != was
                ]
        found += [Move("split", "fusion", name) for name in lowered.fused if name == "relu"]
        found += [Move("fuse", "fusion", name) for name in lowered.materialised]
        found += [Move("rewrite", "rewrite", name, reason="exact") for name in lowered.rewrites_open]
        return tuple(found)

    def outline(self, recipe: Recipe, graph: OpGraph, device: Device) -> Outline:
        found = self.lower(recipe)
        return Outline(found.recipe, found.kernels)

    def apply(self, recipe: Recipe, move: Move) -> Recipe:
        if move.kind == "set" and move.value is not None:
            chosen = {**recipe.choices.get(move.kernel, {}), move.name: move.value}
            return replace(recipe, choices={**recipe.choices, move.kernel: chosen})
        if move.kind == "split":
            return replace(recipe, materialise=(*recipe.materialise, move.name))
        if move.kind == "fuse":
            return replace(recipe, materialise=tuple(name for name in recipe.materialise if name != move.name))
        if move.kind == "rewrite":
            return replace(recipe, rewrites=(*recipe.rewrites, move.name))
        return replace(recipe, rewrites=tuple(name for name in recipe.rewrites if name != move.name))


CPU = Device(
    target="cpu",
    name="toy",
    arch="x86-64-v4",
    cores=2,
    cache_bytes=8 * MB,
    vector_bytes=64,
    memory_bytes=16_000 * MB,
    ceilings=Ceilings(20e9, 80e9, 100e9, 100e9, 100e9, 0.005, "2026-11-20"),
)


def evaluation(
    recipe: Recipe | None = None,
    *,
    name: str = "c1",
    outcome: str = "correct",
    candidate_ms: float = 2.0,
    error: str = "",
    vector_bytes: int = 64,
    facts: dict[str, float | str] | None = None,
    launches: int = 1,
) -> Evaluation:
    candidate = Candidate(name, 0, 1, "cpu", "library" if recipe else "model", "0" * 64, recipe)
    resources = Resources(vector_bytes=vector_bytes)
    if outcome == "compile_error":
        return Evaluation(candidate, Build(False, 0.5, first_error=error))
    build = Build(True, 0.5, resources=resources)
    if outcome != "correct":
        verdict: Any = outcome
        return Evaluation(candidate, build, Verdict(verdict, "screen", evidence=error))
    timing = Timing(
        "screen", candidate_ms, 8.0, 8.0 / candidate_ms, (7.0 / candidate_ms, 9.0 / candidate_ms), 6, 0.02, 1.0
    )
    moved = 2 * 4 * ROWS * COLUMNS
    floor_ms = 1e3 * moved / 20e9
    profile = Profile(
        "roofline",
        1e3 * moved / candidate_ms,
        1e3 * 7 * ROWS * COLUMNS / candidate_ms,
        floor_ms / candidate_ms,
        floor_ms,
        launches,
        facts or {},
    )
    return Evaluation(candidate, build, Verdict("correct", "screen"), Audit(True, "fair"), timing, profile)


@dataclass(frozen=True)
class Toy:
    """What tests build briefs with."""

    library: ToyLibrary

    def brief(self, recipe: Recipe | None = None, *, parent: Evaluation | None = None, **changes: Any) -> Brief:
        """A brief whose parent is the library candidate of `recipe`, correct at 2 ms; `changes` replace fields."""
        lowered = self.library.lower(recipe or Recipe("cpu"))
        brief = Brief(
            task=Task("toy", "toy.py", "class Model: ...", "0" * 64),
            graph=graph(),
            device=CPU,
            baseline=Baseline(8.0, 0.02, [(ROWS, COLUMNS)]),
            role="parameters",
            island=0,
            generation=1,
            step="i0g1",
            seed=7,
            parent=parent or evaluation(lowered.recipe, candidate_ms=4.0),
            parent_text=PARENT,
            lowered=lowered,
            diagnosis=None,
        )
        return replace(brief, **changes)

    def evaluation(self, recipe: Recipe | None = None, **facts: Any) -> Evaluation:
        return evaluation(recipe, **facts)

    def recipe(self, *, materialise: tuple[str, ...] = (), rewrites: tuple[str, ...] = (), **chosen: Choice) -> Recipe:
        """A complete recipe of the toy library; keywords are choices of k0."""
        return self.library.lower(Recipe("cpu", materialise, rewrites, {"k0": chosen})).recipe


@pytest.fixture
def toy() -> Toy:
    return Toy(ToyLibrary())


@pytest.fixture
def scripted() -> Iterator[Callable[..., Any]]:
    """`scripted(reply, reply, ...)` starts a server that gives these replies in order, the last one for ever."""
    started: list[Any] = []

    def start(*replies: Any) -> Any:
        server = ScriptedServer(replies)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.stop()
