"""Edits an operator graph: puts new operators in place of one and drops operators that are no longer read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from foundry.knowledge.opgraph import Argument, DType, Op, OpGraph, Ref, TensorSpec, Value, contiguous_strides

Shape = tuple[int, ...]
_NARROW: tuple[DType, ...] = ("float16", "bfloat16")
FLOATS: tuple[DType, ...] = (*_NARROW, "float32", "float64")


def numbers(items: Sequence[int]) -> list[Argument]:
    """Numbers as an operator's argument."""
    return list(items)


@dataclass
class Editor:
    """The new operators that replace `op`, in order. Nothing changes until `put` returns the changed graph."""

    graph: OpGraph
    op: Op
    new: list[Op] = field(default_factory=list)
    _specs: dict[str, TensorSpec] = field(default_factory=dict)
    _once: set[str] = field(default_factory=set)  # new values made of parameters only

    # ------------------------------------------------ the graph as it is

    @cached_property
    def _kept(self) -> list[str]:
        """Values that forward returns or writes back."""
        return [*self.graph.output_names, *self.graph.mutations.values()]

    def only_reader(self, name: str) -> bool:
        """True if exactly one operator reads a value, once, and forward does not return it."""
        users = self.graph.users.get(name, [])
        return len(users) == 1 and name not in self._kept and _times_read(users[0], name) == 1

    def is_read(self, name: str) -> bool:
        """True if an operator reads a value, or forward returns it or writes it back."""
        return bool(self.graph.users.get(name)) or name in self._kept

    def spec(self, item: Ref) -> TensorSpec:
        """Shape, strides and dtype of a new value, else of the graph's."""
        return self._specs.get(item.ref) or self.graph.values[item.ref].spec

    def shape(self, item: Ref) -> Shape:
        """Shape of a new value, else of the graph's."""
        return self.spec(item).shape

    # ------------------------------------------------ new operators

    def emit(self, target: str, args: Sequence[Argument], shape: Shape, dtype: DType, flops: int | None = None) -> Ref:
        """Adds an operator with one contiguous result.

        `flops` are one for each element unless given. Values made of parameters only are computed once for all calls
        and count none.
        """
        name = self._name()
        spec = TensorSpec(shape, contiguous_strides(shape), dtype)
        op = Op(target, list(args), {}, [Value(name, spec, "op")])
        once = all(read in self.graph.derived or read in self._once for read in op.reads)
        self.new.append(replace(op, flops=0 if once else math.prod(shape) if flops is None else flops))
        self._specs[name] = spec
        if once:
            self._once.add(name)
        return Ref(name)

    def _name(self) -> str:
        """An unused name for a new value."""
        number = len(self.new)
        while (name := f"{self.op.name}_part{number}") in self.graph.values or name in self._specs:
            number += 1
        return name

    def view(self, item: Ref, shape: Shape) -> Ref:
        """The same elements in another shape."""
        if self.shape(item) == shape:
            return item
        return self.emit("aten.reshape.default", [item, numbers(shape)], shape, self.spec(item).dtype, 0)

    def permute(self, item: Ref, order: Sequence[int]) -> Ref:
        """Adds an operator that permutes the value's dimensions."""
        shape = tuple(self.shape(item)[axis] for axis in order)
        return self.emit("aten.permute.default", [item, numbers(order)], shape, self.spec(item).dtype, 0)

    def slice(self, item: Ref, axis: int, start: int, stop: int, step: int = 1) -> Ref:
        """Adds an operator for the elements start, start + step, ... below `stop` along an axis; the value itself if
        all."""
        whole = self.shape(item)
        count = max(0, -(-(stop - start) // step))
        if count == whole[axis] and step == 1:
            return item
        shape = (*whole[:axis], count, *whole[axis + 1 :])
        args: list[Argument] = [item, axis, start, stop, step]
        return self.emit("aten.slice.Tensor", args, shape, self.spec(item).dtype, 0)

    def reduce(self, item: Ref, kind: str, axes: Sequence[int]) -> Ref:
        """Adds an operator for the sum or mean along axes, which stay with size 1; the value itself without axes."""
        whole = self.shape(item)
        if not axes:
            return item
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(whole))
        target = "aten.sum.dim_IntList" if kind == "sum" else "aten.mean.dim"
        return self.emit(target, [item, numbers(axes), True], shape, self.spec(item).dtype, math.prod(whole))

    def cat(self, items: Sequence[Ref], axis: int) -> Ref:
        """The concatenation along an axis."""
        first = self.shape(items[0])
        if len(items) == 1:
            return items[0]
        shape = (*first[:axis], sum(self.shape(item)[axis] for item in items), *first[axis + 1 :])
        return self.emit("aten.cat.default", [list(items), axis], shape, self.spec(items[0]).dtype, 0)

    def add(self, one: Ref, other: Ref) -> Ref:
        """The sum of two tensors of one shape."""
        return self.emit("aten.add.Tensor", [one, other], self.shape(one), self.spec(one).dtype)

    def times(self, item: Ref, factor: float) -> Ref:
        """The tensor times a number."""
        if factor == 1:
            return item
        return self.emit("aten.mul.Tensor", [item, factor], self.shape(item), self.spec(item).dtype)

    def cast(self, item: Ref, dtype: DType) -> Ref:
        """Adds an operator that converts the value to a dtype; the value itself if it has that."""
        spec = self.spec(item)
        return item if spec.dtype == dtype else self.emit("aten.to.dtype", [item, dtype], spec.shape, dtype, 0)

    def widen(self, item: Ref) -> Ref:
        """The tensor in float32 if it has 16 bits, so that sums of weights are rounded once."""
        return self.cast(item, "float32") if self.spec(item).dtype in _NARROW else item

    # ------------------------------------------------ the changed graph

    def put(self, result: Ref) -> OpGraph:
        """The graph in which `result` replaces the result of `op`, in its shape and dtype."""
        value = self.op.outputs[0]
        spec = self.op.outputs[0].spec
        last = self.view(self.cast(result, spec.dtype), spec.shape)
        at = next(index for index, other in enumerate(self.graph.ops) if other is self.op)
        ops = [*self.graph.ops[:at], *self.new, *self.graph.ops[at + 1 :]]
        if self.new and self.new[-1].name == last.ref:  # keeps the name, by which people and recipes know the value
            ops[at + len(self.new) - 1] = replace(
                self.new[-1], outputs=[replace(self.new[-1].outputs[0], name=value.name)]
            )
            return without_unread(replace(self.graph, ops=ops))
        return without_unread(_with_other(replace(self.graph, ops=ops), value.name, last))


def _with_other(graph: OpGraph, name: str, other: Ref) -> OpGraph:
    """The graph with `other` wherever a value was read, returned or written back."""

    def visit(item: Argument) -> Argument:
        """The argument with references to `name` replaced, also in lists."""
        if isinstance(item, list):
            return [visit(member) for member in item]
        return other if item == Ref(name) else item

    ops = [
        replace(
            op, args=[visit(item) for item in op.args], kwargs={key: visit(item) for key, item in op.kwargs.items()}
        )
        if name in op.reads
        else op
        for op in graph.ops
    ]
    mutations = {key: other.ref if made == name else made for key, made in graph.mutations.items()}
    return replace(graph, ops=ops, outputs=[visit(item) for item in graph.outputs], mutations=mutations)


def _times_read(op: Op, name: str) -> int:
    """Number of times that an operator reads a value."""
    items = [*op.args, *op.kwargs.values()]
    flat = [member for item in items for member in (item if isinstance(item, list) else [item])]
    return sum(isinstance(item, Ref) and item.ref == name for item in flat)


def without_unread(graph: OpGraph) -> OpGraph:
    """The graph without operators whose results are never read."""
    wanted = {*graph.output_names, *graph.mutations.values()}
    ops: list[Op] = []
    for op in reversed(graph.ops):
        if any(value.name in wanted for value in op.outputs):
            ops.append(op)
            wanted.update(op.reads)
    return replace(graph, ops=ops[::-1])
