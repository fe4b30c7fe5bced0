"""Folds averages over windows into the weights before them, and merges pools of pools.

p[j] = 1/R sum_r y[j * step + r] of y[o] = sum_k w[k] x[position(o, k)] is again a convolution of x: the tap at the
distance t has the sum of all w[k] whose r and k lead to t, over R. After a transposed convolution whose stride
divides the windows' step it is an ordinary one. Only the pooled result is computed, instead of every position before
it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.compiler.algebra.chain import Chain, chains_above, follow
from foundry.knowledge.compiler.algebra.convolution import (
    MOST_PARTS,
    Convolution,
    convolution_of,
    convolve,
    sum_taps,
)
from foundry.knowledge.compiler.algebra.editor import Editor, Shape, numbers
from foundry.knowledge.compiler.algebra.products import Product, product_of
from foundry.knowledge.opgraph import Argument, Op, OpGraph, Ref

_VIEWS = frozenset({"view", "reshape", "unsqueeze", "squeeze", "flatten", "_unsafe_view"})


@dataclass(frozen=True)
class Windows:
    """A pool without padding whose windows are whole: `kind` is "avg" or "max"."""

    kind: str
    source: Ref
    size: tuple[int, ...]
    step: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.size)


def windows_of(editor: Editor, op: Op) -> Windows | None:
    """The operator as plain windows, or None. Its second result, the place of a maximum, must not be read."""
    kind, _, tail = op.kind.partition("_pool")
    if kind not in ("avg", "max") or not tail[:1].isdigit() or op.kwargs or not isinstance(op.args[0], Ref):
        return None
    if any(editor.is_read(value.name) for value in op.outputs[1:]):
        return None
    rank = int(tail[0])
    size = _numbers(op, 1, rank)
    step = _numbers(op, 2, rank) or size
    padding = _numbers(op, 3, rank) or (0,) * rank
    rest = op.args[4:]
    # avg: ceil_mode, count_include_pad, divisor_override; max: dilation, ceil_mode
    plain = (False, True, None) if kind == "avg" else ([1] * rank, False)
    given = [[item] * rank if kind == "max" and at == 0 and item == 1 else item for at, item in enumerate(rest)]
    if kind == "max" and given and isinstance(given[0], list) and len(given[0]) == 1:
        given[0] = given[0] * rank
    if any(padding) or not size or not step or any(item != want for item, want in zip(given, plain, strict=False)):
        return None
    return Windows(kind, op.args[0], size, step)


def _numbers(op: Op, index: int, rank: int) -> tuple[int, ...]:
    """A parameter for each spatial dimension; one number stands for all."""
    given = op.args[index] if len(op.args) > index else []
    listed = given if isinstance(given, list) else [given]
    found = tuple(item for item in listed if isinstance(item, int))
    return found * rank if len(found) == 1 else found


# ---------------------------------------------------------------- into weights


@dataclass(frozen=True)
class _Axis:
    """One axis of the composed convolution: `taps[t]` are the old taps that its tap t adds up."""

    taps: tuple[tuple[int, ...], ...]
    stride: int
    padding: int


def average_of_convolution(graph: OpGraph, op: Op) -> OpGraph | None:
    """Folds an average over windows into the convolution's weights; None if that does not apply.

    Less work: the composed taps are fewer than those of the positions that an average combines.
    """
    editor = Editor(graph, op)
    pool = windows_of(editor, op)
    if pool is None or pool.kind != "avg":
        return None
    rank = len(editor.shape(pool.source))
    for chain in chains_above(editor, pool.source, range(rank - pool.rank, rank), tensors=False):
        conv = convolution_of(editor, chain.anchor)
        if conv is None or conv.rank != pool.rank:
            continue
        axes = [_composed(editor, conv, pool, op.outputs[0].spec.shape, axis) for axis in range(pool.rank)]
        found = [axis for axis in axes if axis is not None]
        if len(found) == pool.rank and _is_less(editor, conv, chain, op.outputs[0].spec.shape, found):
            return _join_weights(editor, pool, chain, conv, found)
    return None


def _composed(editor: Editor, conv: Convolution, pool: Windows, result: Shape, axis: int) -> _Axis | None:
    """The axis after the pool; None if it is no plain convolution with as many outputs."""
    taps, inputs = editor.shape(conv.weight)[2 + axis], editor.shape(conv.x)[2 + axis]
    stride, padding, dilation = conv.stride[axis], conv.padding[axis], conv.dilation[axis]
    step = pool.step[axis]
    pairs = [(r, k) for r in range(pool.size[axis]) for k in range(taps)]
    if conv.transposed:
        if step % stride:
            return None
        # i * stride = j * step + r + padding - k * dilation
        distances = [((r + padding - k * dilation), k) for r, k in pairs]
        placed = [(distance // stride, k) for distance, k in distances if distance % stride == 0]
        new_stride = step // stride
    else:
        placed = [(r * stride + k * dilation - padding, k) for r, k in pairs]
        new_stride = step * stride
    first, last = min(0, *(at for at, _ in placed)), max(at for at, _ in placed)
    outputs = result[len(result) - pool.rank + axis]
    missing = (outputs - 1) * new_stride + last - (inputs - 1)
    first = min(first, -missing)  # one number pads both sides
    parts = tuple(tuple(k for at, k in placed if at == wanted) for wanted in range(first, last + 1))
    made = (inputs - 2 * first - len(parts)) // new_stride + 1
    if made < outputs or len(parts) > MOST_PARTS:
        return None
    return _Axis(parts, new_stride, -first)


def _is_less(editor: Editor, conv: Convolution, chain: Chain, result: Shape, axes: list[_Axis]) -> bool:
    """True if the composed convolution does fewer multiplications."""
    old = editor.shape(conv.weight)[2:]
    positions = editor.shape(conv.x)[2:] if conv.transposed else editor.shape(chain.start)[2:]
    before = math.prod(old) * math.prod(positions)
    return math.prod(len(axis.taps) for axis in axes) * math.prod(result[2:]) < before


def _join_weights(editor: Editor, pool: Windows, chain: Chain, conv: Convolution, axes: list[_Axis]) -> OpGraph:
    """The graph with pool and convolution replaced by one convolution, whose weights are averages over the pool's
    windows."""
    dtype = editor.spec(conv.weight).dtype
    weight = editor.widen(conv.weight)
    if conv.transposed:
        weight = _as_ordinary(editor, weight, conv.groups)
    for axis, found in enumerate(axes):
        weight = sum_taps(editor, weight, 2 + axis, found.taps)
    weight = editor.cast(editor.times(weight, 1 / math.prod(pool.size)), dtype)
    joined = Convolution(
        x=conv.x,
        weight=weight,
        bias=conv.bias,
        stride=tuple(axis.stride for axis in axes),
        padding=tuple(axis.padding for axis in axes),
        dilation=(1,) * conv.rank,
        groups=conv.groups,
        transposed=False,
    )
    inputs = editor.shape(conv.x)[2:]
    sizes = tuple(
        (size + 2 * axis.padding - len(axis.taps)) // axis.stride + 1 for size, axis in zip(inputs, axes, strict=True)
    )
    value = convolve(editor, joined, sizes)
    wanted = editor.op.outputs[0].spec.shape
    for axis in range(2, len(wanted)):
        value = editor.slice(value, axis, 0, wanted[axis])
    return editor.put(follow(editor, chain, value, lambda other, _: other))


def _as_ordinary(editor: Editor, weight: Ref, groups: int) -> Ref:
    """The weight (in, out/groups, taps) of a transposed convolution as (out, in/groups, taps)."""
    ins, outs, *taps = editor.shape(weight)
    parts = editor.view(weight, (groups, ins // groups, outs, *taps))
    turned = editor.permute(parts, [0, 2, 1, *range(3, 3 + len(taps))])
    return editor.view(turned, (groups * outs, ins // groups, *taps))


def average_of_columns(graph: OpGraph, op: Op) -> OpGraph | None:
    """Averages a weight's neighbouring columns instead of the product's; None if that does not apply.

    Less work: as many columns as windows.
    """
    editor = Editor(graph, op)
    pool = windows_of(editor, op)
    if pool is None or pool.kind != "avg" or pool.rank != 1 or pool.size != pool.step:
        return None
    source = pool.source
    maker = editor.graph.producers.get(source.ref)
    while maker is not None and maker.kind in _VIEWS and editor.only_reader(source.ref):
        item = maker.args[0]
        if not isinstance(item, Ref) or editor.shape(item)[-1:] != editor.shape(source)[-1:]:
            return None
        source = item
        maker = editor.graph.producers.get(item.ref)
    for chain in chains_above(editor, source, [len(editor.shape(source)) - 1], tensors=False):
        product = product_of(editor, chain.anchor)
        if product is not None and product.is_linear and pool.size[0] > 1:
            return _average_columns(editor, pool.size[0], chain, product)
    return None


def _average_columns(editor: Editor, width: int, chain: Chain, product: Product) -> OpGraph:
    """The graph with a pool over a product's columns folded into its weight: averages of runs of `width` columns."""
    columns, depth = editor.shape(product.right)
    count = columns // width
    dtype = editor.spec(product.right).dtype

    def average(item: Ref, tail: Shape) -> Ref:
        """The tensor with each run of `width` entries along its first axis averaged, in its former type."""
        cut = editor.slice(editor.widen(item), 0, 0, count * width)
        parts = editor.reduce(editor.view(cut, (count, width, *tail)), "mean", [1])
        return editor.cast(editor.view(parts, (count, *tail)), dtype)

    weight = average(product.right, (depth,))
    bias: Argument = None if product.bias is None else average(product.bias, ())
    lead = editor.shape(product.left)[:-1]
    flops = 2 * math.prod(lead) * depth * count
    args: list[Argument] = [product.left, weight, bias]
    value = editor.emit("aten.linear.default", args, (*lead, count), dtype, flops)
    return editor.put(follow(editor, chain, value, lambda other, _: other))


# ---------------------------------------------------------------- pools of pools


def pool_of_pool(graph: OpGraph, op: Op) -> OpGraph | None:
    """Merges two maxima, or two averages, over windows into one over larger windows; None if that does not apply.

    The windows of the first must leave no gap, and those of averages must not overlap either. Not more work: each
    element is read as often as before.
    """
    editor = Editor(graph, op)
    outer = windows_of(editor, op)
    if outer is None or not editor.only_reader(outer.source.ref):
        return None
    maker = editor.graph.producers.get(outer.source.ref)
    inner = windows_of(editor, maker) if maker is not None else None
    if maker is None or inner is None or (inner.kind, inner.rank) != (outer.kind, outer.rank):
        return None
    if inner.size != inner.step:
        return None
    size = [a * b for a, b in zip(inner.size, outer.size, strict=True)]
    step = [a * b for a, b in zip(inner.step, outer.step, strict=True)]
    spec = op.outputs[0].spec
    flops = math.prod(spec.shape) * math.prod(size)
    if flops > op.flops + maker.flops:
        return None
    target = f"aten.{outer.kind}_pool{outer.rank}d.default"
    return editor.put(editor.emit(target, [inner.source, numbers(size), numbers(step)], spec.shape, spec.dtype, flops))
