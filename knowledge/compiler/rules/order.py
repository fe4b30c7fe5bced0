"""Lowers topk, sort, median and kthvalue.

The largest few are found one after the other in one kernel. Otherwise a selection kernel selects the wanted elements
of each row and sorts only those. On CUDA short rows need none: an element's rank is the number of elements before
it, found by comparing all pairs.
"""

from __future__ import annotations

import math
from functools import reduce

from foundry.knowledge.compiler.ir.kernels import (
    EmitRow,
    Expr,
    Gather,
    Load,
    Named,
    SelectKernel,
    Store,
    Ties,
    View,
)
from foundry.knowledge.compiler.rules.builder import (
    FLOATS,
    Builder,
    Tensor,
    Unsupported,
    apply,
    cast,
    compute_dtype,
    const,
    flag,
    integer,
    rule,
)
from foundry.knowledge.compiler.rules.reduce import Rows
from foundry.knowledge.compiler.rules.resample import along
from foundry.knowledge.opgraph import DType, Op, Ref

MOST_QUESTIONS = 1 << 31


def _both(left: Expr, right: Expr) -> Expr:
    """left and right."""
    return apply("logical_and", left, right, dtype="bool")


def _either(left: Expr, right: Expr) -> Expr:
    """left or right."""
    return apply("logical_or", left, right, dtype="bool")


def _compare(op: str, left: Expr, right: Expr) -> Expr:
    """A comparison, as a bool."""
    return apply(op, left, right, dtype="bool")


def _unknown(expr: Expr) -> Expr:
    """True at NaN."""
    return apply("isnan", expr, dtype="bool") if expr.dtype in FLOATS else const(False, "bool")


@rule("topk")
def _topk(builder: Builder, op: Op) -> None:
    """Lowers topk. Few elements are found one maximum after another, many by sorting the rows.

    Long rows, unsorted results and those that PyTorch orders by its own way of ties are selected by rank. Raises
    Unsupported for a scalar or k = 0.
    """
    source = builder.tensor(op.args[0])
    count = integer(op, 1, "k")
    axis = source.axis(integer(op, 2, "dim", -1))
    largest = flag(op, 3, "largest", True)
    if not source.shape or not count:
        raise Unsupported("the largest of nothing")
    is_sorted = flag(op, 4, "sorted", True)
    is_few = count <= builder.forms.most_in_turn
    if not is_sorted or _is_known_by_ties(builder, op, count) or (not is_few and _is_long(builder, source, axis)):
        both = _whole_buffer(builder, op, 0), _whole_buffer(builder, op, 1)
        ties: Ties = "as in topk" if is_sorted else "as in unsorted topk"
        _select(builder, op, source, axis, ranks=(0, count), targets=both, largest=largest, ties=ties)
        return
    if not is_few:
        _sorted(builder, op, source, axis, descending=largest)
        return
    rows = Rows(builder, op, source.shape, [axis])
    value = rows.see(source)
    place = along(len(source.shape), len(source.shape) - 1)
    ends = _ends(value.dtype)
    worst = const(ends[0 if largest else 1], value.dtype)
    kind = "max" if largest else "min"
    sought = value if largest or value.dtype not in FLOATS else _last_if_unknown(value)
    targets = [_whole_buffer(builder, op, output) for output in (0, 1)]
    found: list[Expr] = []
    for turn in range(count):
        left = [_compare("ne", place, index) for index in found]
        remains = reduce(_both, left) if left else None
        seen = sought if remains is None else apply("where", remains, sought, worst, dtype=value.dtype)
        best = rows.reduce(f"best{turn}", kind, seen)  # type: ignore[arg-type]
        hit = _compare("eq", sought, best)
        if value.dtype in FLOATS:
            hit = _either(hit, _both(_unknown(sought), _unknown(best)))
        hit = hit if remains is None else _both(remains, hit)
        at = apply("where", hit, place, const(rows.count, "int64"), dtype="int64")
        found.append(rows.reduce(f"at{turn}", "min", at, "int64"))
        kept = best if sought is value else _element(builder, op, source, axis, found[-1])
        for target, item in zip(targets, (kept, found[-1]), strict=True):
            rows.stages.append(EmitRow(Store(target.buffer, _slice(target, axis, turn), cast(item, target.dtype))))
    rows.finish()


def _is_known_by_ties(builder: Builder, op: Op, count: int) -> bool:
    """True if the indices are read and the kernel might choose other equal elements than PyTorch would."""
    name = op.outputs[1].name
    returned = [item.ref for item in builder.graph.outputs if isinstance(item, Ref)]
    is_asked = name in returned or any(name in other.reads for other in builder.graph.ops)
    return is_asked and (count > 1 or not builder.forms.topk_takes_first)


def _last_if_unknown(value: Expr) -> Expr:
    """The value with NaN replaced by infinity, so that it comes last among the smallest."""
    return apply("where", _unknown(value), const(math.inf, value.dtype), value, dtype=value.dtype)


def _ends(dtype: DType) -> tuple[float, float]:
    """The least and the greatest value of a dtype."""
    if dtype in FLOATS:
        return -math.inf, math.inf
    if dtype == "bool":
        return False, True
    bits = {"uint8": 8, "int8": 8, "int16": 16, "int32": 32, "int64": 64}[dtype]
    return (0, 2**bits - 1) if dtype == "uint8" else (-(2 ** (bits - 1)) + 1, 2 ** (bits - 1) - 1)


def _whole_buffer(builder: Builder, op: Op, output: int) -> Load:
    """Adds a buffer for an output, binds the output to it and returns its load."""
    value = op.outputs[output]
    tensor = builder.buffer(value.name, value.spec.shape, value.spec.dtype)
    builder.tensors[value.name] = tensor
    assert isinstance(tensor.expr, Load)
    return tensor.expr


def _slice(target: Load, axis: int, index: int) -> View:
    """The view, over the rows, of the elements at `index` of one dimension; a stride of 0 stands for the reduced one.
    Takes the target's offset as 0."""
    strides = target.view.strides
    return View(index * strides[axis], (*strides[:axis], *strides[axis + 1 :], 0))


def _element(builder: Builder, op: Op, source: Tensor, axis: int, index: Expr) -> Expr:
    """The element at `index` of each row along `axis`."""
    load = builder.ensure_load(source, op)[1]
    steps = load.view.strides
    view = View(load.view.offset, (*steps[:axis], *steps[axis + 1 :], 0))
    return Gather(load.buffer, view, index, step=steps[axis], bound=source.shape[axis], dtype=load.dtype)


# ---------------------------------------------------------------- long rows


def _is_long(builder: Builder, source: Tensor, axis: int) -> bool:
    """True if rows are too long to compare all pairs of elements."""
    size = source.shape[axis]
    return size > builder.forms.longest_asking_row or source.numel * size > MOST_QUESTIONS


def _select(
    builder: Builder,
    op: Op,
    source: Tensor,
    axis: int,
    ranks: tuple[int, int],
    targets: tuple[Load | None, Load],
    *,
    largest: bool,
    ties: Ties = "first",
) -> None:
    """Emits a kernel that stores the elements of each row along `axis` whose rank is in `ranks` (first, end).

    Values and indices go to `targets`, in which `axis` keeps its place. Raises Unsupported if they do not fit in a
    CUDA block.
    """
    first, count = ranks
    value = cast(source.expr, compute_dtype(source.dtype))
    item_bytes = 8 if value.dtype in ("float64", "int64") else 4
    if count - first > 1 and count * item_bytes > builder.forms.most_sorted_bytes:
        raise Unsupported("more elements in order than one kernel keeps")
    order = [*(dim for dim in range(len(source.shape)) if dim != axis), axis]
    turned = builder.permute(Tensor(source.shape, value), order, op)
    found = (Named("acc", value.dtype), Named("index", "int64"))
    stores = []
    for target, item in zip(targets, found, strict=True):
        if target is not None:
            view = View(target.view.offset, tuple(target.view.strides[dim] for dim in order))
            stores.append(Store(target.buffer, view, cast(item, target.dtype)))
    name = f"k_{builder.identifier(op.name)}_select"
    shape, size = turned.shape[:-1], turned.shape[-1]
    sides = tuple(stores)
    ops = (op.name,)
    builder.emit(
        SelectKernel(
            name,
            outer=shape,
            length=size,
            first=first,
            count=count,
            largest=largest,
            value=turned.expr,
            stores=sides,
            dtype=value.dtype,
            ops=ops,
            ties=ties,
        )
    )


def _selected_one(builder: Builder, op: Op, source: Tensor, axis: int, rank: int) -> tuple[Tensor, Tensor]:
    """(value, index) of the element with this rank in each row, stored by a selection."""
    shape = (*source.shape[:axis], 1, *source.shape[axis + 1 :])
    outer = (*source.shape[:axis], *source.shape[axis + 1 :])
    made = [
        builder.buffer(f"{op.name}_{tag}", shape, dtype)
        for tag, dtype in (("value", compute_dtype(source.dtype)), ("at", "int64"))
    ]
    loads = [tensor.expr for tensor in made]
    assert isinstance(loads[0], Load) and isinstance(loads[1], Load)
    _select(builder, op, source, axis, ranks=(rank, rank + 1), targets=(loads[0], loads[1]), largest=False)
    value, index = (builder.reshape(tensor, outer, op) for tensor in made)
    return value, index


# ---------------------------------------------------------------- the place of every element


def _places(builder: Builder, op: Op, source: Tensor, axis: int, *, descending: bool) -> Tensor:
    """The rank of each element in its row: the number of elements before it; among equal ones the first comes first.
    Raises Unsupported for a scalar."""
    if not source.shape:
        raise Unsupported("a number in order")
    size = source.shape[axis]
    rank = len(source.shape)
    rows = Rows(builder, op, (*source.shape, size), [-1])
    order = [*(dim for dim in range(rank) if dim != axis), axis]
    turned = builder.permute(source, order, op)
    spread = builder.reshape(turned, (*turned.shape[:axis], 1, *turned.shape[axis:]), op)
    other = rows.see(spread)
    own = cast(rows.per_row(source), compute_dtype(source.dtype))
    first, last = (own, other) if descending else (other, own)  # `first` is before `last` in order
    equal = _compare("eq", other, own)
    before = _compare("lt", first, last)
    if own.dtype in FLOATS:
        before = _either(before, _both(_unknown(last), _compare("eq", first, first)))
        equal = _either(equal, _both(_unknown(own), _unknown(other)))
    earlier = _compare("lt", along(rank + 1, rank), along(rank + 1, axis))
    counted = cast(_either(before, _both(equal, earlier)), "int64")
    place = rows.temporary("place", rows.reduce("place", "sum", counted, "int64"))
    rows.finish("place")
    return place


def _sorted(builder: Builder, op: Op, source: Tensor, axis: int, *, descending: bool) -> None:
    """Emits values and indices in order, as many as the result has; argsort has no values."""
    place = _places(builder, op, source, axis, descending=descending)
    shape = op.outputs[-1].spec.shape
    rank = len(shape)
    rows = Rows(builder, op, (*shape, source.shape[axis]), [-1])
    order = [*(dim for dim in range(rank) if dim != axis), axis]

    def across(tensor: Tensor) -> Expr:
        """The tensor with the sorted axis last, read anew for each position of the row."""
        turned = builder.permute(tensor, order, op)
        spread = builder.reshape(turned, (*turned.shape[:axis], 1, *turned.shape[axis:]), op)
        return rows.see(spread)

    hit = _compare("eq", across(place), along(rank + 1, axis))
    at = apply("where", hit, along(rank + 1, rank), const(0, "int64"), dtype="int64")
    index = rows.reduce("at", "sum", at, "int64")
    if len(op.outputs) > 1:
        load = builder.ensure_load(source, op)[1]
        steps = tuple(0 if dim == axis else step for dim, step in enumerate(load.view.strides))
        view = View(load.view.offset, (*steps, 0))
        rows.emit_row(
            Gather(load.buffer, view, index, step=load.view.strides[axis], bound=source.shape[axis], dtype=load.dtype)
        )
    rows.emit_row(index, len(op.outputs) - 1)
    rows.finish()


@rule("sort", "argsort")
def _sort(builder: Builder, op: Op) -> None:
    """Lowers sort and argsort, and their stable forms, which have a flag as the first argument. Raises Unsupported for
    a scalar."""
    source = builder.tensor_at(op, 0, "self")
    given = list(op.args[1:])
    if ".stable" in op.target and given and (given[0] is None or isinstance(given[0], bool)):
        given = given[1:]
    dim = given[0] if given else op.kwargs.get("dim", -1)
    descending = given[1] if len(given) > 1 else op.kwargs.get("descending", False)
    assert isinstance(dim, int)
    if not source.shape:
        raise Unsupported("a number in order")
    axis = source.axis(dim)
    if not _is_long(builder, source, axis):
        _sorted(builder, op, source, axis, descending=bool(descending))
        return
    targets = [_whole_buffer(builder, op, output) for output in range(len(op.outputs))]
    values = targets[0] if len(targets) > 1 else None
    _select(
        builder,
        op,
        source,
        axis,
        ranks=(0, source.shape[axis]),
        targets=(values, targets[-1]),
        largest=bool(descending),
    )


@rule("median", "kthvalue")
def _median(builder: Builder, op: Op) -> None:
    """Lowers median and kthvalue along a dimension, by each element's place in its row, or by selection in long rows.

    A row with NaN has its first NaN as the median. Raises Unsupported for the median of all elements.
    """
    source = builder.tensor_at(op, 0, "self")
    if not source.shape or (op.kind == "median" and len(op.outputs) == 1):
        raise Unsupported("the median of all elements")
    at = 1 if op.kind == "median" else 2
    axis = source.axis(integer(op, at, "dim", -1))
    size = source.shape[axis]
    wanted = (size - 1) // 2 if op.kind == "median" else integer(op, 1, "k") - 1
    is_long = _is_long(builder, source, axis)
    if is_long:
        known = _selected_one(builder, op, source, axis, wanted)
    else:
        place = _places(builder, op, source, axis, descending=False)
    rows = Rows(builder, op, source.shape, [axis])
    value = rows.see(source)
    index = along(len(source.shape), len(source.shape) - 1)
    if is_long:
        found, where = (rows.per_row(tensor) for tensor in known)
    else:
        found, where = _at_place(rows, value, index, _compare("eq", rows.see(place), const(wanted, "int64")))
    if op.kind == "median" and value.dtype in FLOATS:  # a row with NaN has its first NaN as the median
        none = const(size, "int64")
        first = rows.reduce("unknown", "min", apply("where", _unknown(value), index, none, dtype="int64"), "int64")
        is_unknown = _compare("lt", first, none)
        found = apply("where", is_unknown, const(math.nan, value.dtype), found, dtype=value.dtype)
        where = apply("where", is_unknown, first, where, dtype="int64")
    rows.emit_row(found, 0)
    rows.emit_row(where, 1)
    rows.finish()


def _at_place(rows: Rows, value: Expr, index: Expr, hit: Expr) -> tuple[Expr, Expr]:
    """The value and the index of the one element of each row where `hit` is true."""
    least = const(_ends(value.dtype)[0], value.dtype)
    found = rows.reduce("value", "max", apply("where", hit, value, least, dtype=value.dtype))
    at = apply("where", hit, index, const(0, "int64"), dtype="int64")
    return found, rows.reduce("at", "sum", at, "int64")
