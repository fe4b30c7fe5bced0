"""Operators that no kernel class is made for, out of those that are there: against PyTorch, by the interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.knowledge.compiler.interpret import run
from tests.knowledge.compiler.lowering import check, graph_of

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.ir.access import is_prepared
from foundry.knowledge.compiler.ir.kernels import (
    ConvKernel,
    GemmKernel,
    MapKernel,
    SegmentKernel,
    SortKernel,
)
from foundry.knowledge.compiler.plan import plan
from foundry.knowledge.device import TargetName

Case = tuple[Callable[..., Any], list[torch.Tensor]]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def _sized(mode: str, size: tuple[int, ...], **options: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda a: F.interpolate(a, size=size, mode=mode, **options) * 2


def _scaled(mode: str, factor: float, **options: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda a: F.interpolate(a, scale_factor=factor, mode=mode, **options)


RESAMPLING: dict[str, Case] = {
    "reflect": (lambda a: F.pad(a, (1, 2, 3, 0), mode="reflect") + 1, [x(1, 2, 4, 5)]),
    "reflect backwards": (lambda a: F.pad(a.flip(-1), (1, 2, 3, 0), mode="reflect"), [x(1, 2, 4, 5)]),
    "reflect in 1d": (lambda a: F.pad(a * 2, (3, 1), mode="reflect"), [x(2, 4)]),
    "replicate": (lambda a: F.pad(a, (1, 2, 0, 3), mode="replicate"), [x(1, 2, 4, 5)]),
    "replicate in 3d": (lambda a: F.pad(a, (1, 2, 0, 3, 1, 1), mode="replicate"), [x(1, 1, 2, 4, 5)]),
    "circular": (lambda a: F.pad(a, (1, 2), mode="circular"), [x(1, 2, 4)]),
    "nearest by a fraction": (_sized("nearest", (7, 5)), [x(1, 2, 3, 4)]),
    "nearest by a factor": (_scaled("nearest", 1.7), [x(1, 2, 3, 4)]),
    "nearest, smaller": (_sized("nearest", (2, 3)), [x(1, 2, 5, 7)]),
    "nearest, exact": (_sized("nearest-exact", (7, 5)), [x(1, 2, 3, 4)]),
    "linear": (_scaled("linear", 1.5), [x(1, 2, 6)]),
    "bilinear": (_scaled("bilinear", 2.0), [x(2, 3, 4, 5)]),
    "bilinear with corners": (_sized("bilinear", (9, 7), align_corners=True), [x(1, 2, 4, 5)]),
    "bilinear, smaller": (_sized("bilinear", (3, 2)), [x(1, 2, 8, 5)]),
    "bilinear of channels last": (lambda a: _scaled("bilinear", 2)(a.permute(0, 3, 1, 2)), [x(2, 4, 5, 3)]),
    "trilinear": (_scaled("trilinear", 2.0), [x(1, 2, 3, 2, 4)]),
    "bicubic": (_scaled("bicubic", 2.0), [x(1, 2, 4, 5)]),
    "bicubic with corners": (_sized("bicubic", (7, 3), align_corners=True), [x(1, 2, 4, 5)]),
    "grid": (lambda a, g: F.grid_sample(a, g, align_corners=False), [x(2, 3, 4, 5), x(2, 3, 6, 2)]),
    "grid with corners": (
        lambda a, g: F.grid_sample(a, g, align_corners=True, padding_mode="border"),
        [x(2, 3, 4, 5), x(2, 3, 6, 2)],
    ),
    "grid with a border, not a number": (
        lambda a, g: F.grid_sample(a, g, align_corners=False, padding_mode="border"),
        [x(2, 3, 4, 5), torch.where(x(2, 3, 6, 2) > 0.8, torch.nan, x(2, 3, 6, 2))],
    ),
    "grid beside NaN": (
        lambda a, g: torch.cat(
            [F.grid_sample(a, g[:1], padding_mode=p, align_corners=True) for p in ("zeros", "border")]
        ),
        [
            torch.where(torch.eye(5).bool(), torch.nan, x(1, 1, 5, 5)),
            torch.linspace(-2, 2, 21)[None, None, :, None].expand(1, 9, 21, 2),
        ],
    ),
    "grid, nearest": (
        lambda a, g: F.grid_sample(a, g, mode="nearest", align_corners=True),
        [x(1, 2, 4, 5), x(1, 3, 3, 2)],
    ),
    "grid in 3d": (lambda a, g: F.grid_sample(a, g, align_corners=False), [x(1, 2, 3, 4, 5), x(1, 2, 3, 2, 3)]),
    "columns": (lambda a: F.unfold(a, (2, 3), padding=(1, 0), stride=2), [x(2, 3, 5, 6)]),
    "columns of dilated windows": (lambda a: F.unfold(a, 2, dilation=2) * 2, [x(2, 3, 5, 6)]),
}


TABLES: dict[str, Case] = {
    "rows, as they are": (lambda i, t: F.embedding(i, t) * 2, [torch.randint(0, 9, (2, 5)), x(9, 16)]),
    "rows, added and normed": (
        lambda i, t, p: F.layer_norm(F.embedding(i, t) + F.embedding(4 - i % 5, p), (24,)),
        [torch.randint(0, 9, (2, 5)), x(9, 24), x(5, 24)],
    ),
    "parts of rows": (lambda i, t: (t[i, 4:12] + 1).relu(), [torch.randint(-9, 9, (6,)), x(9, 16)]),
    "in sixteen bits": (lambda i, t: F.embedding(i, t) + t[:1], [torch.randint(0, 9, (7,)), x(9, 32).bfloat16()]),
}


@pytest.mark.parametrize("name", RESAMPLING)
def test_reading_at_computed_positions(name: str) -> None:
    model, inputs = RESAMPLING[name]
    check(model, *inputs)


def _written(a: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    b = a.clone()
    b[i] = v
    return b


def _added(a: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return a.index_put((i,), v, accumulate=True)


def _written_across(a: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    b = a.clone()
    b[:, i] = v
    return b * 2


def _written_to_all(a: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    written = torch.ops.aten.index_put(a, [None, i], v)
    return torch.slice_scatter(a, written, 0, 0, 2**63 - 1) * 2


def _hidden(a: torch.Tensor) -> torch.Tensor:
    b = a.clone()
    b[a > 0] = -1.0
    return b


def _rows_hidden(a: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    b = a.clone()
    b[m > 0] = 2.0
    return b


ROWS = torch.tensor([0, 2, 2, -1])
PLACES = torch.tensor([[0, 2, 2], [1, 4, 0]])


def _scattered(kind: str, **options: Any) -> Callable[..., torch.Tensor]:
    return lambda a, i, b: a.scatter_reduce(1, i, b, kind, **options)


SCATTERED: dict[str, Case] = {
    "rows added": (lambda a, i, b: a.index_add(0, i.abs(), b, alpha=0.5), [x(4, 5), ROWS, x(4, 5)]),
    "columns added": (lambda a, i, b: torch.zeros_like(a).index_add_(1, i.abs(), b) + a, [x(3, 4), ROWS, x(3, 4)]),
    "rows copied": (lambda a, i, b: a.index_copy(0, i, b), [x(4, 5), torch.tensor([0, 3, 1]), x(3, 5)]),
    "columns filled": (lambda a, i: a.index_fill(1, i.abs(), 3.0), [x(3, 4), ROWS]),
    "elements": (lambda a, i, b: a.scatter(1, i, b).relu(), [x(2, 5), torch.tensor([[0, 2, 3], [1, 4, 0]]), x(2, 3)]),
    "elements of larger values": (
        lambda a, i, b: a.scatter(1, i, b),
        [x(2, 5), torch.tensor([[0, 2, 3], [1, 4, 0]]), x(3, 7)],
    ),
    "one hot": (lambda a, i: torch.zeros_like(a).scatter(1, i, 1.0), [x(2, 5), torch.tensor([[3], [0]])]),
    "first dimension": (lambda a, i, b: a.scatter(0, i, b), [x(5, 2), torch.tensor([[0, 2], [1, 4]]), x(2, 2)]),
    "elements added": (lambda a, i, b: a.scatter_add(1, i, b), [x(2, 5), PLACES, x(2, 3)]),
    "largest": (_scattered("amax"), [x(2, 5), PLACES, x(2, 3)]),
    "smallest alone": (_scattered("amin", include_self=False), [x(2, 5), PLACES, x(2, 3)]),
    "mean": (_scattered("mean"), [x(2, 5), PLACES, x(2, 3)]),
    "mean alone": (_scattered("mean", include_self=False), [x(2, 5), PLACES, x(2, 3)]),
    "product": (_scattered("prod"), [x(2, 5), PLACES, x(2, 3)]),
    "written": (_written, [x(4, 5), torch.tensor([0, -1, 2]), x(3, 5)]),
    "one place of each": (lambda a, i, b: a.scatter(1, i, b), [x(3, 6, 2), torch.randint(0, 6, (3, 1, 2)), x(3, 1, 2)]),
    "one row": (lambda a, i, b: a.index_copy(1, i, b) * 2, [x(3, 4, 2), torch.tensor([2]), x(3, 1, 2)]),
    "one row for many": (_written, [x(4, 5), torch.tensor([[0, -1], [2, 2]]), x(5)]),
    "written across": (_written_across, [x(3, 4), torch.tensor([1, 3]), x(3, 2)]),
    "written across, as torch 2.6 has it": (_written_to_all, [x(3, 4), torch.tensor([1, 3]), x(3, 2)]),
    "added": (_added, [x(4, 5), ROWS, x(4, 5)]),
    "by a mask": (_hidden, [x(4, 5)]),
    "rows by a mask": (_rows_hidden, [x(4, 5), x(4)]),
    "counts": (lambda a, i: torch.zeros(5, dtype=torch.int64).scatter_add(0, i, a), [torch.arange(4), ROWS.abs()]),
    "buckets": (lambda a, e: torch.bucketize(a, e), [x(3, 4), x(5).sort().values]),
    "buckets to the right": (lambda a, e: torch.searchsorted(e, a, right=True), [x(3, 4), x(5).sort().values]),
}


def _softmax_of_segments(score: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """As people write it: each edge's share of its node."""
    largest = torch.full((300,), -torch.inf).scatter_reduce(0, index, score, "amax")
    risen = torch.exp(score - largest[index])
    return risen / torch.zeros(300).index_add(0, index, risen)[index]


def _messages(nodes: torch.Tensor, ends: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(nodes).index_add(0, ends[1], nodes[ends[0]] * weight[:, None]).relu()


def _put(a: torch.Tensor, i: torch.Tensor, j: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return a.index_put((i, j), v, accumulate=True)


def _reduced(kind: str, **options: Any) -> Callable[..., torch.Tensor]:
    return lambda a, i, b: a.scatter_reduce(0, i[:, None].expand_as(b), b, kind, **options)


MANY_ROWS, MANY_PLACES = torch.randint(0, 290, (900,)), torch.randint(0, 150, (40, 900))
WHOLE = torch.randint(-9, 9, (900, 20))
MANY: dict[str, Case] = {  # more indices than each element could ask
    "rows added": (lambda a, i, b: a.index_add(0, i, b, alpha=0.5), [x(300, 20), MANY_ROWS, x(900, 20)]),
    "rows added across": (
        lambda a, i, b: a.t().index_add(1, i, b.t()[:, ::2]),
        [x(300, 20), MANY_ROWS, x(1800, 20)],
    ),
    "planes added": (lambda a, i, b: a.index_add(1, i, b) * 2, [x(3, 300, 7), MANY_ROWS, x(3, 900, 7)]),
    "half rows added": (lambda a, i, b: a.index_add(0, i, b), [x(300, 20).half(), MANY_ROWS, x(900, 20).half()]),
    "elements added": (lambda a, i, b: a.scatter_add(1, i, b), [x(40, 150), MANY_PLACES, x(40, 900)]),
    "elements of a part": (lambda a, i, b: a.scatter_add(1, i, b), [x(50, 150), MANY_PLACES, x(60, 901)]),
    "columns of a part": (lambda a, i, b: a.scatter_add(0, i, b), [x(150, 43), MANY_PLACES.t(), x(900, 40)]),
    "in the middle": (
        lambda a, i, b: a.scatter_add(1, i, b),
        [x(4, 150, 10), MANY_PLACES.view(4, 10, 900).transpose(1, 2), x(4, 900, 10)],
    ),
    "largest": (_reduced("amax"), [x(300, 20), MANY_ROWS, x(900, 20)]),
    "smallest alone": (_reduced("amin", include_self=False), [x(300, 20), MANY_ROWS, x(900, 20)]),
    "mean": (_reduced("mean"), [x(300, 20), MANY_ROWS, x(900, 20)]),
    "mean alone": (_reduced("mean", include_self=False), [x(300, 20), MANY_ROWS, x(900, 20)]),
    "product": (_reduced("prod"), [x(300, 20), MANY_ROWS, x(900, 20)]),
    "product alone": (_reduced("prod", include_self=False), [x(300, 20), MANY_ROWS, x(900, 20)]),
    "largest integers": (_reduced("amax"), [torch.randint(-9, 9, (300, 20)), MANY_ROWS, WHOLE]),
    "mean of integers": (lambda a, i, b: a.index_reduce(0, i, b, "mean"), [WHOLE[:300], MANY_ROWS, WHOLE]),
    "sum of integers": (_reduced("sum"), [WHOLE[:300].int(), MANY_ROWS, WHOLE.int()]),
    "reduced rows": (lambda a, i, b: a.index_reduce(0, i, b, "mean"), [x(300, 20), MANY_ROWS, x(900, 20)]),
    "written": (_written, [x(4000, 5), torch.randperm(4000)[:900] - 2000, x(900, 5)]),
    "copied": (lambda a, i, b: a.index_copy(0, i, b), [x(4000, 5), torch.randperm(4000)[:900], x(900, 5)]),
    "scattered": (lambda a, i, b: a.scatter(0, i, b), [x(6000), torch.randperm(6000)[:900], x(900)]),
    "hot": (lambda a, i: a.scatter(0, i, 1.0), [x(6000), torch.randint(0, 6000, (900,))]),
    "places added": (_put, [x(30, 40, 6), torch.randint(-30, 30, (900,)), torch.randint(0, 40, (900,)), x(900, 6)]),
    "one value added": (_put, [x(30, 40, 6), torch.randint(0, 30, (90, 1)), torch.randint(0, 40, (1, 30)), x(1)]),
    "counts": (lambda i: torch.zeros(9000, dtype=torch.int64).index_add(0, i, torch.ones_like(i)), [MANY_ROWS]),
    "messages": (_messages, [x(300, 20), torch.randint(0, 300, (2, 900)), x(900)]),
    "softmax": (lambda s, i: _softmax_of_segments(s.repeat(16), i.repeat(16)), [x(900), MANY_ROWS]),
    "by 32 bits": (lambda a, i, b: a.index_add(0, i, b), [x(300, 20), MANY_ROWS.int(), x(900, 20)]),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_writing_through_many_indices(name: str, target: TargetName) -> None:
    model, inputs = MANY[name]
    planned = check(model, *inputs, recipe=Recipe(target))
    assert any(isinstance(step, SegmentKernel) for step in planned.steps)


def test_writes_through_the_same_indices_share_a_sort() -> None:
    model, inputs = MANY["softmax"]
    planned = check(model, *inputs, recipe=Recipe("cuda"))
    assert sum(isinstance(step, SortKernel) for step in planned.steps) == 1


class _Graph(torch.nn.Module):
    """Message passing over edges that belong to the model."""

    ends: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ends", torch.randint(0, 300, (2, 900)))

    def forward(self, nodes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return _messages(nodes, self.ends, weight)


def test_edges_that_belong_to_the_model_are_sorted_once() -> None:
    planned = check(_Graph(), x(300, 20), x(900), recipe=Recipe("cuda"))
    assert [type(step) for step in planned.steps] == [SortKernel, SegmentKernel]
    assert is_prepared(planned.steps[0], planned.buffers)


def test_an_empty_list_of_indices_changes_nothing() -> None:
    none = torch.empty(0, dtype=torch.int64)
    check(lambda a, i, b: a.index_add(0, i, b) + 1, x(30, 4), none, x(0, 4))
    check(lambda a, i, b: a.scatter_reduce(0, i, b, "mean", include_self=False) + 1, x(30), none, x(0))
    check(lambda a, i, b: a.index_put((i, i), b, accumulate=True) + 1, x(30, 4), none, x(0))


NAMES, NAMED = torch.tensor([[0, 6, 2], [1, 4, 0], [5, 5, 5], [3, 1, 6]]), x(4, 3)
ENDS = torch.tensor([0, 3, 3, 4, 12])  # bags of several sizes, some of none


def _bagged(mode: str, **options: Any) -> Callable[..., torch.Tensor]:
    return lambda i, w, o: F.embedding_bag(i, w, o, mode=mode, **options)


BAGS: dict[str, Case] = {
    "sums": (lambda i, w: F.embedding_bag(i, w, mode="sum") + 1, [NAMES, x(7, 5)]),
    "weighed": (lambda i, w, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s), [NAMES, x(7, 16), NAMED]),
    "means": (lambda i, w: F.embedding_bag(i, w.t(), mode="mean"), [NAMES, x(5, 7)]),
    "largest": (lambda i, w: F.embedding_bag(i, w, mode="max") * 2, [NAMES, x(7, 5)]),
    "several sizes": (_bagged("sum"), [NAMES.view(-1), x(7, 5), ENDS]),
    "several sizes, means": (_bagged("mean"), [NAMES.view(-1).int(), x(5, 7).t(), ENDS.int()]),
    "several sizes, largest": (_bagged("max"), [NAMES.view(-1), x(7, 5).half(), ENDS]),
    "several sizes, last offset": (_bagged("mean", include_last_offset=True), [NAMES.view(-1), x(7, 16), ENDS]),
    "several sizes, weighed": (
        lambda i, w, o, s: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s),
        [NAMES.view(-1), x(7, 4), ENDS, NAMED.view(-1)],
    ),
    "with padding": (_bagged("sum", padding_idx=5), [NAMES.view(-1), x(7, 5), ENDS]),
    "of one size with padding": (lambda i, w: F.embedding_bag(i, w, mode="sum", padding_idx=-2), [NAMES, x(7, 5)]),
}


@pytest.mark.parametrize("name", BAGS)
def test_rows_of_a_table_in_bags(name: str) -> None:
    model, inputs = BAGS[name]
    check(model, *inputs)


@pytest.mark.parametrize("name", SCATTERED)
def test_writing_through_indices(name: str) -> None:
    model, inputs = SCATTERED[name]
    check(model, *inputs)


def _with_nan(*shape: int) -> torch.Tensor:
    values = torch.randint(-3, 4, shape).float()
    values.view(-1)[3::7] = torch.nan
    return values


ORDERED: dict[str, Case] = {
    "two largest": (lambda a: a.topk(2), [x(3, 8)]),
    "routing": (lambda a: torch.softmax(a, -1).topk(3), [x(4, 8)]),
    "smallest of columns": (lambda a: a.topk(2, 0, largest=False), [x(5, 3)]),
    "smallest with NaN": (lambda a: a.topk(3, largest=False).values, [_with_nan(2, 4)]),
    "largest integers": (lambda a: a.topk(3).values, [torch.randint(-9, 9, (3, 7))]),
    "all infinite": (lambda a: (a * -math.inf).topk(2).values, [torch.ones(2, 4)]),
    "many largest": (lambda a: a.topk(9, 1), [x(2, 12, 2)]),
    "sort": (lambda a: a.sort(), [x(3, 8)]),
    "sort columns": (lambda a: (a * 2).sort(0, descending=True), [x(6, 3)]),
    "sort equal ones": (lambda a: a.sort(dim=-1, stable=True), [_with_nan(3, 9)]),
    "argsort": (lambda a: a.argsort(-1, descending=True), [x(3, 8)]),
    "median": (lambda a: a.median(1), [x(3, 8)]),
    "median with NaN": (lambda a: a.median(1).values, [_with_nan(3, 4)]),
    "third smallest": (lambda a: a.kthvalue(3, 0), [x(7, 3)]),
    "largest of long rows": (lambda a: a.topk(32), [x(2, 1500)]),
    "smallest of long columns": (lambda a: (a * 2).topk(20, 0, largest=False), [x(1100, 3)]),
    "largest of long rows with NaN": (lambda a: a.topk(200).values, [_with_nan(2, 1200)]),
    "largest halves of long rows": (lambda a: a.topk(9).values.float(), [x(3, 1100).half()]),
    "sort of long rows": (lambda a: a.sort(dim=-1, stable=True), [_with_nan(2, 1100)]),
    "argsort of long columns": (lambda a: a.argsort(0, descending=True), [x(1100, 2)]),
    "median of long rows": (lambda a: a.median(1), [x(3, 1101)]),
    "median of long rows with NaN": (lambda a: a.median(-1).values, [torch.cat([_with_nan(1, 1100), x(1, 1100)])]),
    "smallest but some of long columns": (lambda a: a.kthvalue(40, 0), [x(1100, 3)]),
    "hypot": (lambda a, b: torch.hypot(a, b).sum(0), [x(3, 9), x(3, 9)]),
    "running maximum": (lambda a: a.cummax(1), [x(3, 9)]),
    "running maximum with NaN": (lambda a: a.cummax(1), [_with_nan(3, 9)]),
    "running minimum of columns": (lambda a: a.cummin(0), [torch.randint(-5, 5, (9, 3)).float()]),
    "running maximum backwards": (lambda a: a.flip(1).cummax(1).indices, [x(3, 9)]),
}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ORDERED)
def test_elements_in_order(name: str, target: TargetName) -> None:
    model, inputs = ORDERED[name]
    check(model, *inputs, recipe=Recipe(target))


@pytest.mark.parametrize("count", [1, 2, 9, 32])
def test_which_of_equal_elements_are_taken_on_the_cpu(count: int) -> None:
    """Indices are compared, and a task may be asked with numbers that are all the same."""
    check(lambda a: a.topk(count, largest=False), torch.zeros(2, 40))
    check(lambda a: a.softmax(-1).topk(count, sorted=False), torch.zeros(2, 400))


BY_DIFFERENCES = "donot_use_mm_for_euclid_dist"


def _distances(power: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda a, b: torch.cdist(a, b, power)


DISTANCES: dict[str, Case] = {
    "points": (lambda a, b: torch.exp(-torch.cdist(a, b)), [x(2, 7, 3), x(2, 5, 3)]),
    "of many features": (_distances(2.0), [x(7, 65), x(9, 65)]),
    "among themselves": (lambda a: torch.cdist(a * 2, a * 2, compute_mode=BY_DIFFERENCES), [x(30, 5)]),
    "of one cloud and many": (_distances(2.0), [x(7, 3), x(4, 1, 5, 3)]),
    "of columns": (lambda a, b: torch.cdist(a.mT, b.mT), [x(2, 3, 7), x(2, 3, 5)]),
    "of absolute differences": (_distances(1.0), [x(7, 4), x(5, 4)]),
    "of the largest difference": (_distances(math.inf), [x(7, 4), x(5, 4)]),
    "of unequal elements": (_distances(0.0), [torch.randint(0, 2, (7, 4)).float(), torch.ones(5, 4)]),
    "of cubes": (_distances(3.0), [x(7, 4), x(5, 4)]),
    "with NaN": (_distances(2.0), [_with_nan(4, 3), x(5, 3)]),
    "nearest": (lambda a, b: torch.cdist(a, b).min(-1), [x(7, 3), x(9, 3)]),
    "many nearest": (lambda a, b: torch.cdist(a, b).topk(32, largest=False).values, [x(5, 3), x(2048, 3)]),
    "of doubles": (_distances(2.0), [x(7, 3).double(), x(5, 3).double()]),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_of_all_pairs(name: str) -> None:
    model, inputs = DISTANCES[name]
    check(model, *inputs)


def test_distances_of_near_points_far_away_are_those_of_doubles() -> None:
    """PyTorch takes a product of matrices there, and finds points that lie apart from themselves."""
    near = x(40, 3) + 100
    planned = plan(graph_of(lambda a: torch.cdist(a, a), near), Recipe("cpu"))
    (found,), _ = run(planned, [near], {})
    torch.testing.assert_close(found, torch.cdist(near.double(), near.double(), compute_mode=BY_DIFFERENCES).float())
    assert not found.diagonal().any()


def test_what_is_made_of_a_distance_is_made_where_it_is_found() -> None:
    planned = check(lambda a, b: torch.exp(-torch.cdist(a, b).square() / 0.3), x(40, 3), x(50, 3), steps=1)
    assert all(buffer.numel <= 2000 for buffer in planned.buffers.values())


CELLS: dict[str, tuple[Any, list[torch.Tensor]]] = {
    "lstm": (torch.nn.LSTMCell(5, 4), [x(3, 5)]),
    "gru": (torch.nn.GRUCell(5, 4), [x(3, 5), x(3, 4)]),
    "gru without bias": (torch.nn.GRUCell(5, 4, bias=False), [x(3, 5), x(3, 4)]),
    "rnn": (torch.nn.RNNCell(5, 4), [x(3, 5), x(3, 4)]),
    "rnn with relu": (torch.nn.RNNCell(5, 4, nonlinearity="relu"), [x(3, 5), x(3, 4)]),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells_of_recurrent_networks(name: str) -> None:
    model, inputs = CELLS[name]
    check(model, *inputs)


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_a_table(name: str) -> None:
    model, inputs = TABLES[name]
    check(model, *inputs, steps=1)


PATCHES: dict[str, Case] = {
    "squares of an image": (lambda a, w, b: F.conv2d(a, w, b, stride=4), [x(2, 3, 8, 12), x(32, 3, 4, 4), x(32)]),
    "tokens": (
        lambda a, w: F.conv2d(a, w, stride=4).flatten(2).transpose(1, 2).contiguous(),
        [x(2, 3, 9, 12), x(32, 3, 4, 4)],
    ),
    "every other point": (lambda a, w: F.conv2d(a.relu(), w, stride=2).relu(), [x(2, 32, 5, 7), x(40, 32, 1, 1)]),
    "boxes with gaps": (lambda a, w: F.conv3d(a, w, stride=(2, 3, 4)), [x(1, 4, 5, 7, 9), x(33, 4, 2, 2, 3)]),
    "of channels last": (lambda a, w: F.conv2d(a.permute(0, 3, 1, 2), w, stride=3), [x(2, 6, 9, 4), x(32, 4, 3, 3)]),
}


@pytest.mark.parametrize("name", PATCHES)
def test_patches_are_laid_out_for_a_product(name: str) -> None:
    model, inputs = PATCHES[name]
    steps = check(model, *inputs).steps
    assert any(isinstance(step, GemmKernel) for step in steps)
    assert not any(isinstance(step, ConvKernel) for step in steps)


def test_a_result_that_lies_along_its_columns_is_made_the_other_way_round() -> None:
    model, inputs = PATCHES["tokens"]
    (product,) = (step for step in check(model, *inputs).steps if isinstance(step, GemmKernel))
    (store,) = product.stores
    assert store.view.strides[-1] == 1 and (product.m, product.n) == (6, 32)


def test_integers_divided_towards_zero() -> None:
    numbers = torch.arange(-7, 8)
    check(lambda a: torch.div(a, 3, rounding_mode="trunc") + torch.div(a, -2, rounding_mode="trunc"), numbers)


def test_one_index_needs_no_search() -> None:
    cache, at, step = x(2, 9, 4), torch.tensor([[3], [8]]), x(2, 1, 4)

    def model(c: torch.Tensor, i: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return c.scatter(1, i[:, :, None].expand(-1, -1, 4), b).exp()

    planned = check(model, cache, at, step, steps=1)
    assert isinstance(planned.steps[0], MapKernel)
