"""A view of convolutions for the rewrites, and new weights made of sums of old ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.algebra.editor import Editor, Shape, numbers
from foundry.knowledge.opgraph import Argument, Op, Ref

_NAMES = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
MOST_PARTS = 64  # operators that the new weights of one axis may take


@dataclass(frozen=True)
class Convolution:
    """A batched convolution: y[o] = sum over taps k of w[k] x[o * stride - padding + k * dilation].

    If transposed, w[k] x[i] is added to y[o] with o = i * stride - padding + k * dilation.
    """

    x: Ref
    weight: Ref
    bias: Ref | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.stride)


def convolution_of(editor: Editor, op: Op) -> Convolution | None:
    """The operator as a batched convolution with numeric padding; None if it is another operator or form."""
    if op.kind not in _NAMES or op.kwargs or not all(isinstance(item, Ref) for item in op.args[:2]):
        return None
    x, weight = op.args[0], op.args[1]
    bias = op.args[2] if len(op.args) > 2 else None
    assert isinstance(x, Ref) and isinstance(weight, Ref)
    rank = len(editor.shape(weight)) - 2
    if len(editor.shape(x)) != rank + 2 or not (bias is None or isinstance(bias, Ref)):
        return None
    transposed = op.kind.startswith("conv_transpose")
    at = {"stride": 3, "padding": 4, "dilation": 7 if transposed else 5, "groups": 6}
    found = {name: _each(op, index, int(name != "padding"), rank) for name, index in at.items() if name != "groups"}
    groups = op.args[6] if len(op.args) > 6 else 1
    if any(item is None for item in found.values()) or not isinstance(groups, int):
        return None
    sizes = {name: item for name, item in found.items() if item is not None}
    return Convolution(x, weight, bias, **sizes, groups=groups, transposed=transposed)


def _each(op: Op, index: int, default: int, rank: int) -> tuple[int, ...] | None:
    """One number for each spatial axis from an operator's argument; None if it holds other values."""
    given = op.args[index] if len(op.args) > index else default
    listed = given if isinstance(given, list) else [given]
    found = tuple(item for item in listed if isinstance(item, int))
    if len(found) != len(listed) or not found:
        return None
    return found * rank if len(found) == 1 else found


def convolve(editor: Editor, conv: Convolution, sizes: Shape) -> Ref:
    """Adds the convolution as an operator whose result has these spatial sizes."""
    x, weight = editor.shape(conv.x), editor.shape(conv.weight)
    channels = weight[1] * conv.groups if conv.transposed else weight[0]
    shape = (x[0], channels, *sizes)
    positions = math.prod(x[2:] if conv.transposed else sizes)
    flops = 2 * x[0] * x[1] * channels // conv.groups * positions * math.prod(weight[2:])
    overload = "input" if conv.transposed and conv.rank > 1 else "default"
    kind = f"conv_transpose{conv.rank}d" if conv.transposed else f"conv{conv.rank}d"
    stride, padding, dilation = numbers(conv.stride), numbers(conv.padding), numbers(conv.dilation)
    tail: list[Argument] = [dilation, conv.groups]
    if conv.transposed:
        tail = [numbers([0] * conv.rank), conv.groups, dilation]
    args: list[Argument] = [conv.x, conv.weight, conv.bias, stride, padding, *tail]
    return editor.emit(f"aten.{kind}.{overload}", args, shape, editor.spec(conv.x).dtype, flops)


def sum_taps(editor: Editor, weight: Ref, axis: int, parts: Sequence[Sequence[int]]) -> Ref:
    """A weight whose element t along an axis is the sum of the old elements in `parts[t]`; zero for an empty part."""
    size = editor.shape(weight)[axis]
    if [list(part) for part in parts] == [[index] for index in range(size)]:
        return weight
    if any(not part for part in parts):
        weight = _with_zero(editor, weight, axis)
    return editor.cat([_sum_of(editor, weight, axis, sorted(part) or [size]) for part in parts], axis)


def _with_zero(editor: Editor, weight: Ref, axis: int) -> Ref:
    """Adds an operator that pads the weight with one zero at the end of an axis."""
    whole = editor.shape(weight)
    shape = tuple(size + (at == axis) for at, size in enumerate(whole))
    widths: list[Argument] = []
    for at in reversed(range(axis, len(whole))):
        widths += [0, int(at == axis)]
    return editor.emit("aten.constant_pad_nd.default", [weight, widths, 0.0], shape, editor.spec(weight).dtype, 0)


def _sum_of(editor: Editor, weight: Ref, axis: int, taps: list[int]) -> Ref:
    """The sum of a weight's elements at `taps` along an axis; each run of neighbours is one slice."""
    found: Ref | None = None
    while taps:
        step = taps[1] - taps[0] if len(taps) > 1 else 1
        length = next((n for n in range(1, len(taps)) if taps[n] != taps[0] + n * step), len(taps))
        part = editor.slice(weight, axis, taps[0], taps[length - 1] + 1, step)
        part = editor.reduce(part, "sum", [axis]) if length > 1 else part
        found = part if found is None else editor.add(found, part)
        taps = taps[length:]
    assert found is not None
    return found
