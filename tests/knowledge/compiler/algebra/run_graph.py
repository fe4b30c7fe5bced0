"""Operator graphs without a tracer: written call by call, and run by PyTorch's own operators in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from foundry.knowledge.opgraph import Argument, Arrangement, DType, Op, OpGraph, Ref, TensorSpec, Value


def _given(item: Argument, values: dict[str, Any]) -> Any:
    if isinstance(item, Ref):
        return values[item.ref]
    if isinstance(item, list):
        return [_given(member, values) for member in item]
    return torch.float64 if isinstance(item, str) else item


def _call(target: str, args: list[Argument], values: dict[str, Any]) -> list[torch.Tensor]:
    _, name, overload = target.split(".")
    keywords = {"dtype": torch.float64} if name == "full" else {}
    found = getattr(getattr(torch.ops.aten, name), overload)(*[_given(item, values) for item in args], **keywords)
    return [found] if isinstance(found, torch.Tensor) else list(found)


@dataclass
class Sketch:
    """A graph in the making. Its tensors hold random numbers, so that it can be run as it is."""

    dtype: DType = "float32"
    inputs: list[Value] = field(default_factory=list)
    state: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def _leaf(self, kind: str, place: list[Value], shape: tuple[int, ...]) -> Ref:
        name = f"{kind}{len(place)}"
        self.tensors[name] = torch.randn(shape, dtype=torch.float64)
        spec = TensorSpec(shape, self.tensors[name].stride(), self.dtype)
        place.append(Value(name, spec, kind, str(len(place))))  # type: ignore[arg-type]
        return Ref(name)

    def input(self, *shape: int) -> Ref:
        return self._leaf("input", self.inputs, shape)

    def weight(self, *shape: int) -> Ref:
        return self._leaf("parameter", self.state, shape)

    def call(self, target: str, *args: Argument, flops: int = 0) -> Ref:
        """An operator on what is there; the first of its results."""
        results = _call(target, list(args), self.tensors)
        names = [f"v{len(self.ops)}" + (f"_out{number}" if number else "") for number in range(len(results))]
        outputs = []
        for name, result in zip(names, results, strict=True):
            dtype: DType = self.dtype if result.is_floating_point() else "int64"
            outputs.append(Value(name, TensorSpec(tuple(result.shape), result.stride(), dtype), "op"))
            self.tensors[name] = result
        self.ops.append(Op(target, list(args), {}, outputs, flops=flops or results[0].numel()))
        return Ref(names[0])

    def graph(self, *results: Ref) -> OpGraph:
        return OpGraph(
            self.inputs, self.state, self.ops, list(results), "export", arrangement=Arrangement.flat(len(results))
        )

    def run(self, graph: OpGraph) -> list[torch.Tensor]:
        """The outputs of a graph over the same leaves; checks that every result has the shape that the graph says."""
        values: dict[str, Any] = {item.name: self.tensors[item.name] for item in [*self.inputs, *self.state]}
        for op in graph.ops:
            for value, result in zip(op.outputs, _call(op.target, op.args, values), strict=True):
                assert tuple(result.shape) == value.spec.shape, (op, result.shape)
                values[value.name] = result
        return [values[name] for name in graph.output_names]
