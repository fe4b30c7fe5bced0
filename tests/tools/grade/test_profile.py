"""Rooflines of known numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from foundry.knowledge.candidate import Audit, Build, Profile, Resources, Timing
from foundry.knowledge.device import Ceilings, Device
from foundry.knowledge.opgraph import DType, Op, OpGraph, Ref, TensorSpec, Value
from foundry.knowledge.roofline import floor_in_force, floors
from foundry.knowledge.task import Policy
from foundry.tools.audit.policies import policy_gates, practices
from foundry.tools.audit.text.source import CandidateSource, read_source
from foundry.tools.grade.host.roofline import launches, profile

SPEC = TensorSpec((1000, 1000), (1000, 1), "float32")
GRAPH = OpGraph(
    inputs=[Value("x", SPEC, "input", "0")],
    state=[],
    ops=[Op("aten.exp.default", [Ref("x")], {}, [Value("exp", SPEC, "op")], flops=8_000_000)],
    outputs=[Ref("exp")],
    tracer="export",
)
DEVICE = Device(
    "cpu", "test", "x86-64-v3", 2, 1 << 20, 32, 1 << 30,
    ceilings=Ceilings(1e10, 1e11, 1e11, 1e11, 1e11, 0.001, "2026-01-01"),
)  # fmt: skip

BUILT = Build(True, 0.1)


def timing(milliseconds: float) -> Timing:
    return Timing("full", milliseconds, 10.0, 10.0 / milliseconds, (1.0, 2.0), 10, 0.01, 1.0)


def profiled(
    text: str,
    milliseconds: float,
    device: Device,
    graph: OpGraph | None = None,
    policy: Policy = "fair",
    build: Build = BUILT,
) -> Profile:
    """The profile of a file whose audit found the labels that its text shows, as in a workbench."""
    source = read_source(text)
    assert isinstance(source, CandidateSource)
    labels = tuple(sorted(practices(source)))
    found = floors(device, graph, policy, labels) if graph else None
    return profile(text, build, Audit(True, policy, labels=labels), timing(milliseconds), device, graph, floors=found)


def candidate(source: str) -> str:
    return f'import torch.nn as nn\nSOURCE = r"""{source}"""\n\n\nclass ModelNew(nn.Module):\n    pass\n'


def test_the_roofline_of_a_memory_bound_kernel() -> None:
    made = profiled(candidate(""), 1.6, DEVICE, GRAPH)
    assert made.rung == "roofline"
    assert made.floor_ms == pytest.approx(0.8)  # 8 MB at 10 GB/s
    assert made.fraction_of_floor == pytest.approx(0.5)
    assert made.achieved_bytes_per_s == pytest.approx(5e9)
    assert made.facts["roof"] == "memory"
    assert made.facts["arithmetic_floor_ms"] == pytest.approx(0.08)


def product_graph(dtype: DType, after: DType) -> OpGraph:
    """A product of 1000-cubed matrices in `dtype`, then a softmax in `after`."""
    spec, last = replace(SPEC, dtype=dtype), replace(SPEC, dtype=after)
    return OpGraph(
        inputs=[Value("a", spec, "input", "0"), Value("b", spec, "input", "1")],
        state=[],
        ops=[
            Op("aten.mm.default", [Ref("a"), Ref("b")], {}, [Value("mm", spec, "op")], flops=2_000_000_000),
            Op("aten.softmax.int", [Ref("mm"), 1], {}, [Value("softmax", last, "op")], flops=5_000_000),
        ],
        outputs=[Ref("softmax")],
        tracer="export",
    )


GPU = Device(
    "cuda", "test", "sm_90", 132, 1 << 20, 16, 1 << 30,
    ceilings=Ceilings(1e15, 1e15, 1e12, 8e12, 16e12, 0.001, "2026-01-01"),
)  # fmt: skip
DECLARED = "FOUNDRY = {{'target': 'cuda', 'labels': [{label!r}]}}\n"
USED = {
    "no label": ("float32", "float32", "", 2.005),
    "TF32": ("float32", "float32", "tf32", 2.005 / 8),
    "TF32 through 16 bits": ("float32", "float32", "tf32:half", 2.005 / 16),
    "a task in 16 bits": ("bfloat16", "bfloat16", "", 2.005 / 16),
    "a last step in float32": ("float16", "float32", "", 2.005 / 16),
}


@pytest.mark.parametrize("name", USED)
def test_the_floor_is_of_the_arithmetic_that_the_kernel_uses(name: str) -> None:
    dtype, after, label, floor_ms = USED[name]
    graph = product_graph(cast(DType, dtype), cast(DType, after))
    text = DECLARED.format(label=label) + candidate("")
    made = profiled(text, 4.0, GPU, graph)
    assert made.floor_ms == pytest.approx(floor_ms)
    assert made.fraction_of_floor == pytest.approx(floor_ms / 4.0)
    assert made.facts["arithmetic_floor_ms"] == pytest.approx(floor_ms)


@pytest.mark.parametrize(("dtype", "floor_ms"), [("float32", 20.05), ("bfloat16", 5.0125)])
def test_on_a_cpu_sixteen_bits_are_for_tasks_of_sixteen_bits(dtype: DType, floor_ms: float) -> None:
    cpu = replace(DEVICE, ceilings=Ceilings(1e15, 1e15, 1e11, 1e11, 4e11, 0.001, "2026-01-01"))
    found = floors(cpu, product_graph(dtype, dtype), "fair")
    assert found.allowed_ms == pytest.approx(floor_ms)
    assert found.used_ms == pytest.approx(floor_ms)


@pytest.mark.parametrize("labels", [(), ("prepared-weights",), ("prepared-weights", "tf32:half")])
def test_prepared_weights_move_in_the_form_that_is_kept_of_them(labels: tuple[str, ...]) -> None:
    """A kernel that reads a large weight packed to 16 bits was called a cheat: it moved half of what was counted."""
    large = replace(SPEC, shape=(1000, 250_000))
    graph = OpGraph(
        inputs=[Value("a", SPEC, "input", "0")],
        state=[Value("w", large, "parameter", "w")],
        ops=[Op("aten.mm.default", [Ref("a"), Ref("w")], {}, [Value("mm", SPEC, "op")], flops=1_000_000)],
        outputs=[Ref("mm")],
        tracer="export",
    )
    device = replace(GPU, ceilings=Ceilings(1e12, 1e15, 1e15, 8e15, 16e15, 0.001, "2026-01-01"))
    found = floors(device, graph, "fair", labels)
    assert found.traffic_ms == pytest.approx(0.508 if labels else 1.008)
    assert found.used_ms == pytest.approx(0.508 if "tf32:half" in labels else 1.008)


def test_tf32_in_inline_assembly_counts_as_declared() -> None:
    text = candidate('__global__ void k() { asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 ..."); }')
    source = read_source(text)
    assert isinstance(source, CandidateSource)
    assert [gate.gate for gate in policy_gates(practices(source), "strict")] == ["tf32"]
    made = profiled(text, 4.0, GPU, product_graph("float32", "float32"))
    assert made.floor_ms == pytest.approx(2.005 / 8)


@pytest.mark.parametrize(
    ("dtype", "policy", "floor_ms"),
    [
        ("float32", "strict", 2.005),
        ("float32", "fair", 2.005 / 16),
        ("float32", "open", 2.005 / 16),
        ("bfloat16", "strict", 2.005 / 16),
    ],
)
def test_the_policy_bounds_what_is_possible(dtype: DType, policy: Policy, floor_ms: float) -> None:
    """A policy that allows TF32 allows a kernel that takes its products through the 16-bit units."""
    graph = product_graph(dtype, "float32")
    made = profiled(candidate(""), 4.0, GPU, graph, policy)
    assert made.allowed_floor_ms == pytest.approx(floor_ms)


def test_a_compilers_report_is_the_next_rung() -> None:
    resources = Resources(40, 0, 4096, 0.5, 16, {}, {"k": {"registers": 40}})
    made = profiled(candidate(""), 1.0, DEVICE, GRAPH, build=Build(True, 0.1, resources=resources))
    assert made.rung == "compiler"
    assert made.facts["occupancy"] == 0.5


def test_without_graph_or_ceilings_nothing_is_invented() -> None:
    bare = Device("cpu", "test", "x86-64", 2, 1 << 20, 16, 1 << 30)
    made = profiled(candidate(""), 1.0, bare)
    assert (made.achieved_bytes_per_s, made.floor_ms, made.fraction_of_floor) == (0.0, 0.0, 0.0)


def test_launches_are_counted() -> None:
    two = "void f() {\n#pragma omp parallel for\nfor(;;);\n}\nvoid g() {\n#pragma omp parallel\n{}\n}\n// omp parallel"
    assert launches(candidate(two)) == 2
    assert launches(candidate("__global__ void k() {}\nvoid f() { k<<<1, 2>>>(); }")) == 1


def test_what_indices_choose_of_a_table_sets_no_floor() -> None:
    """Few rows of a large embedding were said to need the time to move all of it, and a right kernel was refused."""
    table, rows = replace(SPEC, shape=(1_000_000, 1000)), TensorSpec((1000,), (1,), "int64")
    part = replace(SPEC, shape=(10, 1000))
    graph = OpGraph(
        inputs=[Value("i", rows, "input", "0"), Value("x", SPEC, "input", "1")],
        state=[Value("t", table, "parameter", "t")],
        ops=[
            Op("aten.embedding.default", [Ref("t"), Ref("i")], {}, [Value("rows", SPEC, "op")]),
            Op("aten.slice.Tensor", [Ref("x"), 0, 0, 10], {}, [Value("part", part, "op")]),
            Op("aten.add.Tensor", [Ref("rows"), Ref("part")], {}, [Value("sum", SPEC, "op")]),
        ],
        outputs=[Ref("sum")],
        tracer="export",
    )
    assert graph.min_bytes == 8 * 1000 + 4 * 10 * 1000 + SPEC.nbytes
    whole = replace(graph, ops=[*graph.ops, Op("aten.sum.default", [Ref("t")], {}, [Value("all", SPEC, "op")])])
    assert whole.min_bytes == graph.min_bytes, "what is made of parameters alone can be kept"
    read = replace(graph, ops=[*graph.ops, Op("aten.mm.default", [Ref("x"), Ref("t")], {}, [Value("mm", SPEC, "op")])])
    assert read.min_bytes == 8 * 1000 + 2 * SPEC.nbytes + table.nbytes


@pytest.mark.parametrize(("candidate_ms", "share"), [(4.0, 0.5), (1.9, 2.0 / 1.9), (1.0, 0.5)])
def test_who_is_faster_than_the_tasks_arithmetic_is_held_against_what_must_move(
    candidate_ms: float, share: float
) -> None:
    """It computes the same from less; a share of the floor that it has passed would say that nothing is left."""
    assert floor_in_force(2.0, 0.5, candidate_ms) / candidate_ms == pytest.approx(share)
