"""GPU kernels that read some matrices along memory order and others across it. The others are transposed through
shared-memory tiles, before or afterwards: one kernel cannot read both ways without touching one cache line per
element."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from foundry.knowledge.compiler.fusion.state import FusionState
from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import Step, expressions, rewritten, store_space, stores_of
from foundry.knowledge.compiler.ir.kernels import (
    Buffer,
    ConvKernel,
    Emit,
    Expr,
    Load,
    MapKernel,
    RowKernel,
    Store,
    View,
)
from foundry.knowledge.opgraph import DType

Shape = tuple[int, ...]
# Fewest elements for which a copy is worth a launch and a pass over memory. H200, 37 million bfloat16 elements: a row
# kernel that read both ways took 0.82 ms and a depthwise convolution 0.67 ms; reading and writing takes 0.04 ms.
TURNED_LEAST = 1 << 20
# Least stride in elements in the other direction: nearer elements share cache lines in either direction.
APART_LEAST = 32


def turn_operands(state: FusionState) -> None:
    """Adds copies of large operands in a better memory order (from TURNED_LEAST elements on).

    Row kernels that read both ways get transposed copies. Depthwise convolutions get contiguous copies of inputs that
    are not contiguous along their last dimension.
    """
    for kernel in list(state.steps):
        if isinstance(kernel, RowKernel) and math.prod(store_space(kernel)) >= TURNED_LEAST:
            if {_direction(kernel, view) for view in _seen(kernel)} >= {"along", "across"}:
                _turn(state, kernel)
        elif isinstance(kernel, ConvKernel) and kernel.groups == kernel.in_channels > 1:
            size = kernel.batch * kernel.in_channels * math.prod(kernel.input_size)
            if kernel.x_strides[-1] != 1 and kernel.input_size[-1] > 1 and size >= TURNED_LEAST:
                _lay_out_planes(state, kernel)


def _lay_out_planes(state: FusionState, kernel: ConvKernel) -> None:
    """Gives a depthwise convolution a copy of its input with each channel's image contiguous."""
    space = (kernel.batch, kernel.in_channels, *kernel.input_size)
    dtype = state.buffers[kernel.x].dtype
    rows = views.identity(space)
    name = _copy(state, f"{kernel.x}_planes", space, dtype)
    store = Store(name, rows, Load(kernel.x, View(kernel.x_offset, kernel.x_strides), dtype))
    turned = MapKernel(f"k_{name}", space, (store,), kernel.ops)
    _replace(state, kernel, [turned, replace(kernel, x=name, x_offset=0, x_strides=rows.strides)])


def _copy(state: FusionState, name: str, space: Shape, dtype: DType) -> str:
    """Adds a contiguous temporary buffer of shape `space` and returns its name."""
    while name in state.buffers:
        name += "_again"
    state.buffers[name] = Buffer(name, space, views.identity(space).strides, dtype, "temporary")
    return name


def _replace(state: FusionState, kernel: Step, made: list[Step]) -> None:
    """Replaces one kernel by several steps in its place."""
    place = state.place(kernel)
    state.replace_steps([kernel], made, [*state.steps[:place], *made, *state.steps[place + 1 :]])


def _turn(state: FusionState, kernel: RowKernel) -> None:
    """Makes the kernel read and write transposed copies of the matrices that are contiguous across its rows."""
    space = store_space(kernel)
    before = list[MapKernel]()
    after = list[MapKernel]()
    rows = views.identity(space)

    known: dict[Load, Load] = {}
    for load in dict.fromkeys(_loads(kernel)):
        if _direction(kernel, load.view) == "across":
            known[load] = Load(_copy(state, f"{load.buffer}_turned", space, load.dtype), rows, load.dtype)
            store = Store(known[load].buffer, rows, load)
            before.append(MapKernel(f"k_{store.buffer}", space, (store,), kernel.ops))

    def turned(expr: Expr, _: tuple[int, ...]) -> Expr:
        """The expression with each load across memory order replaced by one of the transposed copy."""
        return views.rebuild(expr, lambda node: known.get(node, node) if isinstance(node, Load) else node)

    changed = rewritten(kernel, turned)
    assert isinstance(changed, RowKernel)
    stages = list(changed.stages)
    for at, stage in enumerate(stages):
        if isinstance(stage, Emit) and _direction(kernel, stage.store.view) == "across":
            target, dtype = stage.store, state.buffers[stage.store.buffer].dtype
            name = _copy(state, f"{target.buffer}_rows", space, dtype)
            stages[at] = Emit(Store(name, rows, target.value))
            store = Store(target.buffer, target.view, Load(name, rows, dtype))
            after.append(MapKernel(f"k_{name}", space, (store,), kernel.ops))
    _replace(state, kernel, [*before, replace(changed, stages=tuple(stages)), *after])


def _loads(kernel: RowKernel) -> Iterator[Load]:
    """Yields the loads of all of the kernel's expressions."""
    for expr, _ in expressions(kernel):
        yield from (node for node in views.nodes(expr) if isinstance(node, Load))


def _seen(kernel: RowKernel) -> Iterator[View]:
    """Yields the views of all loads and stores."""
    yield from (load.view for load in _loads(kernel))
    yield from (store.view for store in stores_of(kernel))


def _direction(kernel: RowKernel, view: View) -> str:
    """ "along" if the view is contiguous along the kernel's rows, "across" if across them, and other strides are large.

    "" if it moves in one direction only, or is neither.
    """
    space = store_space(kernel)
    rank = len(kernel.outer)
    steps = [(step, axis) for axis, step in enumerate(view.strides) if step and space[axis] > 1]
    if {axis < rank for _, axis in steps} != {True, False}:
        return ""
    step, axis = min(steps)
    other = min(step for step, one in steps if (one < rank) != (axis < rank))
    return ("across" if axis < rank else "along") if step == 1 and other >= APART_LEAST else ""
