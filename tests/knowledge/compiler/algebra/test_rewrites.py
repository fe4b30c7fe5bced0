"""Every rewrite: the same numbers in float64 over random shapes, less work, and untouched where it would be wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.knowledge.compiler.algebra.run_graph import Sketch

from foundry.knowledge.compiler.algebra.rewrites import REWRITES, Rewritten, as_labelled, rewrite_graph
from foundry.knowledge.opgraph import Argument, OpGraph, Ref

few = settings(max_examples=8, deadline=None, derandomize=True)
sizes = st.integers(2, 5)


def same(sketch: Sketch, *results: Ref, names: tuple[str, ...] = ()) -> Rewritten:
    """The rewritten graph, whose numbers are the graph's own."""
    graph = sketch.graph(*results)
    found = rewrite_graph(graph, names or [rewrite.name for rewrite in REWRITES])
    torch.manual_seed(0)
    for have, want in zip(sketch.run(found.graph), sketch.run(graph), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-9, atol=1e-9)
    return found


def kinds(graph: OpGraph) -> dict[str, tuple[int, ...]]:
    """The shape of the last result of each kind of operator."""
    return {op.kind: op.outputs[0].spec.shape for op in graph.ops}


def scaled(sketch: Sketch, value: Ref, tail: tuple[int, ...]) -> Ref:
    """value * 3 / scalar - number + weight, all of which an average may pass."""
    value = sketch.call("aten.mul.Tensor", value, 3.0)
    value = sketch.call("aten.div.Tensor", value, sketch.weight())
    value = sketch.call("aten.sub.Tensor", value, 0.5)
    return sketch.call("aten.add.Tensor", sketch.weight(*tail), value)


# ---------------------------------------------------------------- products


@few
@given(m=sizes, n=sizes, k=sizes, kind=st.sampled_from(["sum", "mean"]), keeps=st.booleans(), bias=st.booleans())
def test_a_sum_over_output_features_sums_the_weight(m: int, n: int, k: int, kind: str, keeps: bool, bias: bool) -> None:
    sketch = Sketch()
    args: list[Argument] = [sketch.input(m, k), sketch.weight(n, k), *([sketch.weight(n)] if bias else [])]
    value = scaled(sketch, sketch.call("aten.linear.default", *args, flops=2 * m * n * k), (n,))
    target = "aten.sum.dim_IntList" if kind == "sum" else "aten.mean.dim"
    found = same(sketch, sketch.call("aten.relu.default", sketch.call(target, value, [-1], keeps)))
    assert found.applied == ("sum-before-product",)
    before = sketch.graph(Ref(sketch.ops[-1].name))
    assert kinds(found.graph)["linear"] == (m, 1) and found.graph.flops < before.flops
    assert found.graph.min_bytes < before.min_bytes  # the weight itself is not read


@few
@given(b=sizes, m=sizes, n=sizes, k=sizes, dims=st.sampled_from([[0], [1], [0, 1], [0, 1, 2], [1, 2], None]))
def test_a_sum_over_rows_sums_the_rows(b: int, m: int, n: int, k: int, dims: list[int] | None) -> None:
    for kind in ("sum", "mean"):
        sketch = Sketch()
        value = sketch.call("aten.linear.default", sketch.input(b, m, k), sketch.weight(n, k), sketch.weight(n))
        listed: list[Argument] = [*(dims or [])]
        target = "aten.sum.dim_IntList" if kind == "sum" else "aten.mean.dim"
        whole = f"aten.{kind}.default"
        value = sketch.call(target, value, listed) if dims else sketch.call(whole, value)
        found = same(sketch, value)
        assert found.applied == ("sum-before-product",)
        assert math.prod(kinds(found.graph)["linear"]) < b * m * n


@few
@given(b=sizes, m=sizes, n=sizes, k=sizes, axis=st.integers(0, 2), turned=st.booleans())
def test_sums_of_products_of_two_inputs(b: int, m: int, n: int, k: int, axis: int, turned: bool) -> None:
    sketch = Sketch()
    right = sketch.input(*((b, k, n) if turned else (k, n)))
    value = sketch.call("aten.matmul.default", sketch.input(b, m, k), right)
    value = sketch.call("aten.add.Tensor", value, sketch.input(b, m, n))
    found = same(sketch, sketch.call("aten.sum.dim_IntList", value, [axis]))
    assert bool(found.applied) == (axis > 0 or not turned)  # a batch of products is no single product


@few
@given(m=sizes, n=sizes)
def test_a_diagonal_factor_scales(m: int, n: int) -> None:
    sketch = Sketch()
    left = sketch.call("aten.mm.default", sketch.call("aten.diag.default", sketch.input(m)), sketch.input(m, n))
    both = sketch.call("aten.matmul.default", left, sketch.call("aten.diag_embed.default", sketch.weight(n)))
    found = same(sketch, both)
    assert found.applied == ("diagonal-product",) and not {"mm", "matmul", "diag"} & set(kinds(found.graph))


# ---------------------------------------------------------------- convolutions


def convolution(sketch: Sketch, rank: int, size: int, groups: int, **numbers: int) -> Ref:
    """A convolution, or a transposed one, of random channels; `numbers`: taps, stride, padding, dilation, extra."""
    taps, stride, padding = numbers["taps"], numbers["stride"], numbers["padding"]
    dilation = numbers["dilation"]
    x = sketch.input(2, 2 * groups, *[size + axis for axis in range(rank)])
    each: list[list[Argument]] = [[number] * rank for number in (stride, padding, dilation)]
    if numbers["transposed"]:
        weight = sketch.weight(2 * groups, 3, *[taps] * rank)
        extra: list[Argument] = [min(numbers["extra"], stride - 1)] * rank
        tail: list[Argument] = [extra, groups, each[2]]
    else:
        weight = sketch.weight(3 * groups, 2, *[taps] * rank)
        tail = [each[2], groups]
    overload = "input" if numbers["transposed"] and rank > 1 else "default"
    name = f"aten.conv_transpose{rank}d.{overload}" if numbers["transposed"] else f"aten.conv{rank}d.default"
    bias = sketch.weight(3 * groups)
    return sketch.call(name, x, weight, bias, each[0], each[1], *tail, flops=10**6)


geometry = {
    "rank": st.integers(1, 3),
    "size": st.integers(5, 7),
    "groups": st.integers(1, 2),
    "taps": st.integers(1, 4),
    "stride": st.integers(1, 3),
    "padding": st.integers(0, 1),
    "dilation": st.integers(1, 2),
    "transposed": st.booleans(),
    "extra": st.integers(0, 1),
}


def has_room(rank: int, size: int, taps: int, dilation: int, padding: int, transposed: bool, **_: int) -> bool:
    """True if the smallest axis gives an output at all."""
    return transposed or size + 2 * padding > (taps - 1) * dilation


@settings(max_examples=25, deadline=None, derandomize=True)
@given(numbers=st.fixed_dictionaries(geometry), kind=st.sampled_from(["sum", "mean"]), data=st.data())
def test_sums_over_positions_sum_the_input(numbers: dict[str, int], kind: str, data: st.DataObject) -> None:
    sketch = Sketch()
    if not has_room(**numbers):  # type: ignore[arg-type]
        return
    value = convolution(sketch, **numbers)
    rank = numbers["rank"]
    value = scaled(sketch, value, (3 * numbers["groups"], *[1] * rank))
    axes = sorted(data.draw(st.sets(st.integers(1, rank + 1), min_size=1)))
    before = sketch.graph(value).flops
    target = "aten.sum.dim_IntList" if kind == "sum" else "aten.mean.dim"
    found = same(sketch, sketch.call(target, value, [*axes], True))
    assert set(found.applied) <= {"sum-before-convolution", "sum-before-product", "single-element"}
    assert not found.applied or found.graph.flops <= before


@settings(max_examples=25, deadline=None, derandomize=True)
@given(numbers=st.fixed_dictionaries(geometry), width=st.integers(2, 3), step=st.integers(1, 4))
def test_averages_join_the_weights(numbers: dict[str, int], width: int, step: int) -> None:
    sketch = Sketch()
    if not has_room(**numbers):  # type: ignore[arg-type]
        return
    value = convolution(sketch, **numbers)
    rank = numbers["rank"]
    if min(sketch.tensors[value.ref].shape[2:]) < width:
        return
    value = scaled(sketch, value, (3 * numbers["groups"], *[1] * rank))
    pooled = sketch.call(f"aten.avg_pool{rank}d.default", value, [width] * rank, [step] * rank)
    found = same(sketch, pooled)
    assert set(found.applied) <= {"average-into-weights"}


@few
@given(size=st.integers(12, 17), stride=st.integers(2, 3), taps=st.integers(2, 4), padding=st.integers(0, 1))
def test_an_average_after_a_transposed_convolution_makes_it_an_ordinary_one(
    size: int, stride: int, taps: int, padding: int
) -> None:
    sketch = Sketch()
    numbers = {"taps": taps, "stride": stride, "padding": padding, "dilation": 1, "transposed": 1, "extra": 0}
    value = convolution(sketch, 2, size, 1, **numbers)
    found = same(sketch, sketch.call("aten.avg_pool2d.default", value, [stride, stride]))
    assert found.applied == ("average-into-weights",) and "conv_transpose2d" not in kinds(found.graph)


@few
@given(m=sizes, width=st.integers(2, 3), count=sizes, rest=st.integers(0, 1), k=sizes)
def test_averages_of_columns_join_the_weight(m: int, width: int, count: int, rest: int, k: int) -> None:
    sketch = Sketch()
    columns = width * count + rest
    value = sketch.call("aten.linear.default", sketch.input(m, k), sketch.weight(columns, k), sketch.weight(columns))
    value = sketch.call("aten.unsqueeze.default", sketch.call("aten.mul.Tensor", value, 2.0), 1)
    found = same(sketch, sketch.call("aten.avg_pool1d.default", value, [width]))
    assert found.applied == ("average-into-weights",) and kinds(found.graph)["linear"] == (m, count)


@few
@given(first=sizes, second=sizes, rest=st.integers(0, 3), step=st.integers(1, 3), kind=st.sampled_from(["max", "avg"]))
def test_pools_of_pools_are_one(first: int, second: int, rest: int, step: int, kind: str) -> None:
    sketch = Sketch()
    x = sketch.input(2, 2, first * second + rest, first * second * 2)
    inner = sketch.call(f"aten.{kind}_pool2d.default", x, [first, first], flops=10**6)
    outer = sketch.call(f"aten.{kind}_pool2d.default", inner, [second, second], [min(step, second)] * 2, flops=10**6)
    assert same(sketch, outer).applied == ("pool-of-pool",)


# ---------------------------------------------------------------- one element, constants


def test_one_element_is_its_own_sum_and_maximum() -> None:
    sketch = Sketch()
    x = sketch.input(4, 1)
    value = sketch.call("aten.max.dim", x, 1, True)
    value = sketch.call("aten.logsumexp.default", sketch.call("aten.mean.dim", value, [1], True), [1], True)
    centred = sketch.call("aten.sub.Tensor", value, sketch.call("aten.mean.dim", value, [1], True))
    found = same(
        sketch, value, centred, sketch.call("aten.softmax.int", x, 1), sketch.call("aten.cumsum.default", x, 1)
    )
    assert found.applied == ("single-element",) and set(kinds(found.graph)) <= {"reshape", "full"}


def test_numbers_of_neighbours_join() -> None:
    sketch = Sketch()
    value = sketch.input(3, 4)
    numbers: list[tuple[str, list[Argument]]] = [
        ("mul.Tensor", [3.0]),
        ("div.Tensor", [1.5]),
        ("mul.Tensor", [1]),
        ("dropout.default", [0.5, False]),
        ("add.Tensor", [2.0]),
        ("sub.Tensor", [0.5]),
        ("relu.default", []),
        ("relu.default", []),
        ("hardtanh.default", [-2.0, 4.0]),
        ("clamp.default", [None, 3.0]),
    ]
    for name, args in numbers:
        value = sketch.call(f"aten.{name}", value, *args)
    found = same(sketch, value)
    assert found.applied == ("fold-constants",)
    assert [op.kind for op in found.graph.ops] == ["mul", "add", "clamp"]


def test_factors_beyond_float32_stay_apart() -> None:
    sketch = Sketch()
    large = sketch.call("aten.mul.Tensor", sketch.input(3, 4), 1e25)
    assert same(sketch, sketch.call("aten.mul.Tensor", large, 1e20)).possible == ()


@few
@given(bounds=st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3)), min_size=2, max_size=2))
def test_a_clamp_of_a_clamp(bounds: list[tuple[int, int]]) -> None:
    sketch = Sketch()
    value = sketch.input(50)
    for low, width in bounds:
        value = sketch.call("aten.clamp.default", value, float(low), float(low + width))
    assert same(sketch, value).applied == ("fold-constants",)


# ---------------------------------------------------------------- what stays


def _returned(sketch: Sketch, product: Ref) -> tuple[Ref, ...]:
    return (product, sketch.call("aten.sum.dim_IntList", product, [1]))


def _nonlinear(sketch: Sketch, product: Ref) -> tuple[Ref, ...]:
    return (sketch.call("aten.sum.dim_IntList", sketch.call("aten.relu.default", product), [1]),)


def _weighed(sketch: Sketch, product: Ref) -> tuple[Ref, ...]:
    weighed = sketch.call("aten.mul.Tensor", product, sketch.weight(5))
    return (sketch.call("aten.sum.dim_IntList", weighed, [1]),)


def _squared(sketch: Sketch, product: Ref) -> tuple[Ref, ...]:
    return (sketch.call("aten.sum.dim_IntList", sketch.call("aten.mul.Tensor", product, product), [1]),)


def _divides(sketch: Sketch, product: Ref) -> tuple[Ref, ...]:
    return (sketch.call("aten.sum.dim_IntList", sketch.call("aten.div.Tensor", sketch.weight(3, 5), product), [1]),)


@pytest.mark.parametrize("use", [_returned, _nonlinear, _weighed, _squared, _divides])
def test_a_product_that_is_read_otherwise_stays(use: Callable[[Sketch, Ref], tuple[Ref, ...]]) -> None:
    sketch = Sketch()
    product = sketch.call("aten.linear.default", sketch.input(3, 4), sketch.weight(5, 4))
    assert same(sketch, *use(sketch, product)).possible == ()


def test_only_what_is_named_is_applied() -> None:
    sketch = Sketch()
    value = sketch.call("aten.linear.default", sketch.input(3, 4), sketch.weight(5, 4))
    value = sketch.call("aten.mean.dim", sketch.call("aten.sum.dim_IntList", value, [1], True), [1], True)
    found = same(sketch, value, names=("single-element",))
    assert found.applied == ("single-element",) and kinds(found.graph)["linear"] == (3, 5)
    assert found.possible == ("sum-before-product", "single-element")


def test_the_floor_of_a_declared_rewrite_leaves_out_what_no_call_reads() -> None:
    """Inputs and outputs move in any case, a weight that is added up once does not."""
    sketch = Sketch()
    product = sketch.call("aten.linear.default", sketch.input(3, 40), sketch.weight(50, 40), flops=2 * 3 * 50 * 40)
    graph = sketch.graph(sketch.call("aten.sum.dim_IntList", product, [1]))
    assert as_labelled(graph, ["prepared-weights", "tf32"]) == graph
    found = as_labelled(graph, ["prepared-weights", "algebra:sum-before-product", "algebra:unknown"])
    assert (graph.min_bytes, found.min_bytes) == (4 * (120 + 2000 + 3), 4 * (120 + 40 + 3))
