"""Writes of a few elements to a tensor that the module keeps, directly in its memory instead of a new tensor that is
copied back. A step of a key-value cache of 16,384 rows then writes one row, instead of 16,384 rows twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from foundry.knowledge.compiler.ir.kernels import Load, Named, SegmentKernel, Store, View
from foundry.knowledge.compiler.rules.builder import (
    Builder,
    OwnWrite,
    Tensor,
    apply,
    argument,
    cast,
    compute_dtype,
    integer,
)
from foundry.knowledge.compiler.rules.shape import clip
from foundry.knowledge.compiler.rules.writes.segments import Items
from foundry.knowledge.opgraph import WRITTEN, Argument, Op, OpGraph, Ref

_SCATTERS = frozenset({"index_copy", "index_put", "index_fill", "index_add", "scatter", "scatter_add"})
_SLICES = frozenset({"slice_scatter", "select_scatter"})
_JOINS: dict[str, Literal["last", "sum"]] = {"last": "last", "sum": "sum"}
_SMALLEST_PART = 4  # divisor: writes of more than 1/4 of the tensor gain nothing over a full copy
_WIDE = 1024  # elements of one item; from this width on KernelForms.longest_wide_loop is the limit


@dataclass
class _Chain:
    """Writes that lead from a value to a later one. `inside`: their operators and the views between them; `before`:
    the values that they overwrite."""

    writes: dict[str, bool] = field(default_factory=dict)  # operator -> True if it encloses others
    inside: set[str] = field(default_factory=set)
    before: set[str] = field(default_factory=set)


def find_writes(graph: OpGraph) -> dict[str, OwnWrite]:
    """The operators that may write directly to the module's own memory, by name. No other operator may read the
    tensor's old value or a value between, and forward must not return the new one."""
    state = {value.source: value for value in graph.state if value.data is None}
    state |= {WRITTEN + value.source: value for value in graph.inputs}
    apart = [None if str(place) in graph.returned else item for place, item in enumerate(graph.outputs)]
    graph = replace(graph, outputs=apart)  # without inputs that are returned themselves
    found: dict[str, OwnWrite] = {}
    for key, name in graph.mutations.items():
        old = state.get(key)
        if old is None or not old.spec.is_contiguous or list(graph.mutations.values()).count(name) > 1:
            continue
        chain = _chain(graph, name, lambda op, value, old=old: value == old.name)  # type: ignore[misc]
        if chain is None or not chain.writes:
            continue
        over = {*chain.before, old.name}
        is_read = any(_is_read(graph, name, chain.inside) for name in over)
        if not is_read and over.isdisjoint(graph.output_names):
            found |= {op: OwnWrite(key, encloses) for op, encloses in chain.writes.items()}
    return found


def _chain(graph: OpGraph, name: str, is_end: Callable[[Op | None, str], bool]) -> _Chain | None:
    """The writes that lead from the value where `is_end` holds to the value `name`. None if there is no such value,
    or forward returns one between."""
    chain = _Chain()
    while not is_end(graph.producers.get(name), name):
        op = graph.producers.get(name)
        base = op.args[0] if op is not None and op.args else None
        if op is None or not isinstance(base, Ref) or name in graph.output_names:
            return None
        if _is_whole(graph, op) and op.kind == "slice_scatter":
            base = op.args[1]  # the first operand is overwritten completely
        elif op.kind in _SLICES:
            part = op.args[1]
            inner = _chain(graph, part.ref, _begins(graph, op)) if isinstance(part, Ref) else None
            if inner is not None and inner.writes:
                chain.inside |= inner.inside
                chain.before |= inner.before
                chain.writes |= inner.writes
            chain.writes[op.name] = inner is not None and bool(inner.writes)
        elif op.kind in _SCATTERS:
            chain.writes[op.name] = False
        elif not _is_whole(graph, op):
            return None
        if not isinstance(base, Ref):
            return None
        chain.inside.add(op.name)
        if chain.writes:
            chain.before.add(base.ref)
        name = base.ref
    end = graph.producers.get(name)
    chain.inside |= {end.name} if end is not None else set()
    return chain


def _begins(graph: OpGraph, write: Op) -> Callable[[Op | None, str], bool]:
    """A test for the value that is the part of a tensor that `write` writes back into it."""

    def is_part(op: Op | None, name: str) -> bool:
        """True if `op` reads the same part of the same tensor that the write writes."""
        if op is None or op.kind != write.kind.removesuffix("_scatter"):
            return False
        return _part(graph, op, 1) == _part(graph, write, 2) and _view(graph, op.args[0]) == _view(graph, write.args[0])

    return is_part


def _view(graph: OpGraph, item: Argument) -> object:
    """An object that identifies the part of a value that `item` is: equal for the same part taken twice."""
    op = graph.producers.get(item.ref) if isinstance(item, Ref) else None
    if op is None or op.kind not in ("slice", "select"):
        return item
    return op.kind, _part(graph, op, 1), _view(graph, op.args[0])


def _part(graph: OpGraph, op: Op, first: int) -> tuple[object, ...]:
    """The part of its first operand that an operator takes or replaces: (axis, index) or (axis, start, stop, step).
    `first` is the position of its first argument for that."""
    shape = graph.values[op.reads[0]].spec.shape
    axis = integer(op, first, "dim", 0) % max(len(shape), 1)
    if op.kind in ("select", "select_scatter"):
        return axis, integer(op, first + 1, "index") % shape[axis]
    start, end = argument(op, first + 1, "start"), argument(op, first + 2, "end")
    size = shape[axis]
    step = argument(op, first + 3, "step", 1)
    begin, stop = (clip(int(at), size) if isinstance(at, int) else none for at, none in ((start, 0), (end, size)))
    return axis, begin, stop, step


def _is_whole(graph: OpGraph, op: Op) -> bool:
    """True if an operator returns its operand unchanged (a slice of all of it), or overwrites all of it."""
    shapes = [graph.values[item.ref].spec.shape for item in op.args[:2] if isinstance(item, Ref)]
    if op.kind == "slice":
        return shapes[0] == op.outputs[0].spec.shape and argument(op, 4, "step", 1) == 1
    return op.kind == "slice_scatter" and len(shapes) == 2 and shapes[0] == shapes[1]


def _is_read(graph: OpGraph, name: str, inside: set[str]) -> bool:
    """True if an operator outside `inside` reads a value's elements, directly or through a part. Operators that need
    its shape only do not count."""
    for op in graph.users.get(name, ()):
        if op.name in inside:
            continue
        if op.name in graph.output_names or Ref(name) in op.args[1:]:
            return True
        if op.kind in ("slice", "select"):
            if _is_read(graph, op.name, inside):
                return True
        elif op.kind not in ("fill", "copy"):
            return True
    return False


def own_memory(builder: Builder, op: Op) -> Tensor | None:
    """The part of the module's own tensor that an operator may write to directly; None if it may not."""
    own = builder.in_place.get(op.name)
    base = builder.tensor(op.args[0])
    if own is None or not isinstance(base.expr, Load):
        return None
    held = builder.buffers[base.expr.buffer]
    if held.key != own.key:
        return None  # an earlier write produced a new tensor
    if held.is_in_place:
        return base
    known = [name for name, buffer in builder.buffers.items() if buffer.is_in_place and buffer.source == own.key]
    memory = known[0] if known else builder.state_buffer(held, own.key)
    return Tensor(base.shape, replace(base.expr, buffer=memory))


def enclosing_memory(builder: Builder, op: Op, part: Tensor) -> Tensor | None:
    """The module's own tensor after an operator that writes back a part which is already in place; None if there is
    none."""
    own = builder.in_place.get(op.name)
    if own is None or not own.encloses or not isinstance(part.expr, Load):
        return None
    return own_memory(builder, op) if builder.buffers[part.expr.buffer].is_in_place else None


def put_items(builder: Builder, op: Op, items: Items, kind: str, factor: float) -> bool:
    """Emits a kernel that writes items to the module's own memory. False if that is not possible, or not faster."""
    target, inner = items.target, items.target.numel
    for axis in items.axes:
        inner //= max(target.shape[axis], 1)
    most = builder.forms.longest_wide_loop if inner >= _WIDE else builder.forms.longest_loop
    is_small = items.count <= most and items.count * inner * _SMALLEST_PART <= target.numel
    if kind not in _JOINS or factor != 1 or not is_small or (target.dtype == "bool" and kind == "sum"):
        return False
    memory = own_memory(builder, op)
    if memory is None or builder.in_place[op.name].encloses:
        return False
    assert isinstance(memory.expr, Load)
    buffer, steps = memory.expr.buffer, memory.expr.view.strides
    if any(steps[one] != steps[other] * target.shape[other] for one, other in pairwise(items.axes)):
        return False
    rest = [axis for axis in range(len(target.shape)) if axis not in items.axes]
    shape = (target.numel // max(inner, 1), *(target.shape[axis] for axis in rest))
    view = View(memory.expr.view.offset, (steps[items.axes[-1]], *(steps[axis] for axis in rest)))
    dtype = compute_dtype(target.dtype)
    acc = Named("acc", dtype)
    joined = acc if kind == "last" else apply("add", cast(Load(buffer, view, target.dtype), dtype), acc)
    store = Store(buffer, view, cast(joined, target.dtype))
    value = cast(items.value, dtype)
    name = f"k_{builder.identifier(op.name)}_put"
    ops = (op.name,)
    builder.emit(
        SegmentKernel(
            name,
            items=items.count,
            shape=shape,
            op=_JOINS[kind],
            value=value,
            starts="",
            order="",
            stores=(store,),
            dtype=dtype,
            ops=ops,
            key=items.key,
            in_place=True,
        )
    )
    builder.tensors[op.outputs[0].name] = memory
    return True
