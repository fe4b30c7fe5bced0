"""Sums and means over a convolution's output channels or positions, taken before the convolution.

Over channels: the weights of all output channels are added up first, as for a product's columns.

Over positions o of one axis, y[o] = sum_k w[k] x[position(o, k)]. So sum_o y[o] = sum_k w[k] X[k], where X[k] is the
sum of x over the positions that tap k reads. Taps that read the same positions share one X, and their weights are
added up; the others become input channels of their own. Positions that all taps read are added up once, and the few
at the borders are added to that, never subtracted from a larger sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from foundry.knowledge.compiler.algebra.chain import Chain, chains_above
from foundry.knowledge.compiler.algebra.convolution import (
    MOST_PARTS,
    Convolution,
    convolution_of,
    convolve,
    sum_taps,
)
from foundry.knowledge.compiler.algebra.editor import Editor
from foundry.knowledge.compiler.algebra.products import Total, finish_total, total_of
from foundry.knowledge.opgraph import Op, OpGraph, Ref


@dataclass(frozen=True)
class _Run:
    """The input positions start, start + step, ... below stop."""

    start: int
    stop: int
    step: int


def total_of_channels(graph: OpGraph, op: Op) -> OpGraph | None:
    """Adds up the weights of all output channels; None if that does not apply. Less work: one output channel for
    several."""
    editor = Editor(graph, op)
    total = total_of(editor, op)
    if total is None or 1 not in total.axes:
        return None
    for chain in chains_above(editor, total.source, total.axes):
        conv = convolution_of(editor, chain.anchor)
        if conv is None or conv.groups != 1 or editor.shape(chain.start)[1] == 1:
            continue
        dtype = editor.spec(conv.weight).dtype
        weight = editor.reduce(editor.widen(conv.weight), total.kind, [1 if conv.transposed else 0])
        bias = conv.bias and editor.reduce(editor.widen(conv.bias), total.kind, [0])
        bias = bias and editor.cast(bias, dtype)
        summed = replace(conv, weight=editor.cast(weight, dtype), bias=bias)
        value = convolve(editor, summed, editor.shape(chain.start)[2:])
        return finish_total(editor, total, chain, value, {1})
    return None


def total_of_positions(graph: OpGraph, op: Op) -> OpGraph | None:
    """Adds up the input before the convolution; None if that does not apply.

    Less work: each position of the axis is multiplied once instead of once for each tap and output channel.
    """
    editor = Editor(graph, op)
    total = total_of(editor, op)
    if total is None:
        return None
    for chain in chains_above(editor, total.source, total.axes):
        conv = convolution_of(editor, chain.anchor)
        if conv is None:
            continue
        sizes = editor.shape(chain.start)[2:]
        axes = [axis for axis in range(conv.rank) if axis + 2 in total.axes and sizes[axis] > 1]
        if axes and all(_is_less(editor, conv, sizes[axis], axis) for axis in axes):
            return _reduce_positions(editor, total, chain, conv, axes)
    return None


def _is_less(editor: Editor, conv: Convolution, size: int, axis: int) -> bool:
    """True if the taps that stay apart are fewer than the positions computed without the rewrite."""
    runs = _runs(editor, conv, size, axis)
    taps = editor.shape(conv.weight)[2 + axis]
    before = taps * (editor.shape(conv.x)[2 + axis] if conv.transposed else size)
    meets = any(run.stop > run.start for run in runs)
    return meets and 2 * len(set(runs)) <= before and len(runs) <= MOST_PARTS


def _runs(editor: Editor, conv: Convolution, size: int, axis: int) -> list[_Run]:
    """For each tap of the kernel the run of input positions that it reads for `size` outputs along an axis."""
    inputs = _length(editor, conv, axis)
    stride, padding, dilation = conv.stride[axis], conv.padding[axis], conv.dilation[axis]
    found = []
    for tap in range(editor.shape(conv.weight)[2 + axis]):
        shift = tap * dilation - padding
        if conv.transposed:  # 0 <= i * stride + shift < size
            run = _Run(max(0, -(shift // stride)), min(inputs, -((shift - size) // stride)), 1)
        else:  # 0 <= o * stride + shift < inputs
            first = max(0, -(shift // stride))
            last = min(size, -((shift - inputs) // stride))
            run = _Run(first * stride + shift, last * stride + shift, stride) if last > first else _Run(0, 0, 1)
        found.append(run if run.stop > run.start else _Run(0, 0, 1))
    return found


def _length(editor: Editor, conv: Convolution, axis: int) -> int:
    """Size of the convolution's input along one of its spatial axes."""
    return editor.shape(conv.x)[2 + axis]


def _reduce_positions(editor: Editor, total: Total, chain: Chain, conv: Convolution, axes: list[int]) -> OpGraph:
    """The graph with the input summed along `axes` before the convolution, instead of its result after it."""
    sizes = list(editor.shape(chain.start)[2:])
    done = {axis + 2 for axis in axes}
    count = math.prod(sizes[axis] for axis in axes)
    dtype = editor.spec(chain.start).dtype
    conv = replace(conv, x=editor.widen(conv.x), weight=editor.widen(conv.weight))
    conv, axes = _without_whole_axes(editor, conv, sizes, axes)
    for axis in axes:
        conv = _without_axis(editor, conv, _runs(editor, conv, sizes[axis], axis), axis)
        sizes[axis] = 1
    plain = replace(conv, bias=None)
    value = _product(editor, plain) if set(editor.shape(conv.x)[2:]) == {1} and conv.groups == 1 else None
    value = value or convolve(editor, plain, tuple(sizes))
    if total.kind == "mean":
        value = editor.times(value, 1 / count)
    if conv.bias is not None:
        bias = editor.view(editor.widen(conv.bias), (*editor.shape(conv.bias), *(1,) * conv.rank))
        bias = editor.times(bias, 1 if total.kind == "mean" else count)
        value = editor.emit("aten.add.Tensor", [value, bias], editor.shape(value), editor.spec(value).dtype)
    return finish_total(editor, total, chain, editor.cast(value, dtype), done)


def _without_whole_axes(
    editor: Editor, conv: Convolution, sizes: list[int], axes: list[int]
) -> tuple[Convolution, list[int]]:
    """The convolution without the axes all of whose taps read the whole input, and the remaining axes."""
    whole = [
        axis
        for axis in axes
        if set(_runs(editor, conv, sizes[axis], axis)) == {_Run(0, _length(editor, conv, axis), 1)}
    ]
    x = editor.reduce(conv.x, "sum", [axis + 2 for axis in whole])
    weight = editor.reduce(conv.weight, "sum", [axis + 2 for axis in whole])
    for axis in whole:
        conv, sizes[axis] = _at_one_position(conv, axis), 1
    return replace(conv, x=x, weight=weight), [axis for axis in axes if axis not in whole]


def _without_axis(editor: Editor, conv: Convolution, runs: list[_Run], axis: int) -> Convolution:
    """The convolution of the added-up input: one position along the axis, a group of input channels for each run."""
    distinct = [run for run in dict.fromkeys(runs) if run.stop > run.start]
    parts = [[tap for tap, run in enumerate(runs) if run == wanted] for wanted in distinct]
    weight = sum_taps(editor, conv.weight, 2 + axis, parts)
    x = editor.cat(_sums(editor, conv.x, 2 + axis, distinct), 2 + axis)
    x = _axis_to_channels(editor, x, 2 + axis, 1)
    weight = _axis_to_channels(editor, weight, 2 + axis, 0 if conv.transposed else 1)
    return replace(_at_one_position(conv, axis), x=x, weight=weight)


def _at_one_position(conv: Convolution, axis: int) -> Convolution:
    """The convolution with stride 1 and no padding along an axis of one position and one tap."""
    return replace(
        conv,
        stride=_at(conv.stride, axis, 1),
        padding=_at(conv.padding, axis, 0),
        dilation=_at(conv.dilation, axis, 1),
    )


def _at(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    """The tuple with one value replaced."""
    return (*values[:axis], value, *values[axis + 1 :])


def _sums(editor: Editor, x: Ref, axis: int, runs: list[_Run]) -> list[Ref]:
    """The sums of x over runs. The part that all runs share is read once."""
    start, stop = max(run.start for run in runs), min(run.stop for run in runs)
    if any(run.step != 1 for run in runs) or stop <= start or len(runs) == 1:
        return [_sum(editor, x, axis, run) for run in runs]
    inner = _sum(editor, x, axis, _Run(start, stop, 1))
    found = []
    for run in runs:
        value = inner
        for border in _borders(run, start, stop):
            value = editor.add(value, _sum(editor, x, axis, border))
        found.append(value)
    return found


def _borders(run: _Run, start: int, stop: int) -> Iterable[_Run]:
    """The parts of a run outside start .. stop."""
    return [_Run(*pair, 1) for pair in ((run.start, start), (stop, run.stop)) if pair[1] > pair[0]]


def _sum(editor: Editor, x: Ref, axis: int, run: _Run) -> Ref:
    """The sum of x over the positions of a run along an axis, which stays with size 1."""
    part = editor.slice(x, axis, run.start, run.stop, run.step)
    return part if editor.shape(part)[axis] == 1 else editor.reduce(part, "sum", [axis])


def _axis_to_channels(editor: Editor, item: Ref, axis: int, channels: int) -> Ref:
    """Moves an axis behind the channel axis and merges both; the axis stays with size 1."""
    shape = editor.shape(item)
    if shape[axis] == 1:
        return item
    order = [at for at in range(len(shape)) if at != axis]
    order.insert(channels + 1, axis)
    turned = editor.permute(item, order)
    merged = list(shape)
    merged[channels], merged[axis] = shape[channels] * shape[axis], 1
    return editor.view(turned, tuple(merged))


def _product(editor: Editor, conv: Convolution) -> Ref:
    """A convolution of one position and one tap as a matrix product over the channels."""
    x, weight = editor.shape(conv.x), editor.shape(conv.weight)
    rows, matrix = editor.view(conv.x, x[:2]), editor.view(conv.weight, weight[:2])
    columns = weight[1] if conv.transposed else weight[0]
    target = "aten.matmul.default" if conv.transposed else "aten.linear.default"
    flops = 2 * x[0] * x[1] * columns
    value = editor.emit(target, [rows, matrix], (x[0], columns), editor.spec(conv.x).dtype, flops)
    return editor.view(value, (x[0], columns, *(1,) * conv.rank))
