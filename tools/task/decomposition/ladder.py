"""The ladder: an operator that no kernel computes is replaced by PyTorch's own decomposition, if that lowers whole.

Only that operator is replaced, and then those of its parts that no kernel computes, until nothing is left.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._decomp import global_decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from foundry.knowledge.compiler.plan import without_kernel
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import Argument, Op, OpGraph, Ref, Value
from foundry.knowledge.targets import BUILT_IN
from foundry.tools.task.decomposition.own import OWN

DEEPEST = 6  # decompositions inside decompositions
MOST_PARTS = 400  # operators that may replace one
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})  # decomposed they are thousands of steps

# Makes the operator graph of a trace, from its nodes, its constants and the number of its results.
ToGraph = Callable[[fx.Graph, Mapping[str, torch.Tensor], int], OpGraph]


def with_decompositions(graph: OpGraph, nodes: fx.Graph, to_graph: ToGraph) -> OpGraph:
    """The graph, in which operators that no kernel computes hold their decompositions (`Op.instead`).

    `nodes` is the trace of which `to_graph` made the graph.
    """
    return _Ladder(to_graph).climb(graph, nodes, DEEPEST)


@dataclass(frozen=True)
class _Ladder:
    to_graph: ToGraph

    def climb(self, graph: OpGraph, nodes: fx.Graph, depth: int) -> OpGraph:
        """The graph with decompositions where they are needed, at most `depth` of them inside each other."""
        missing = stuck(graph)
        if not missing or not depth:
            return graph
        by_name = {node.name: node for node in nodes.nodes}
        ops = []
        for op in graph.ops:
            node = by_name.get(op.name.removesuffix("_out0")) if op.name in missing else None
            ops.append(op if node is None else replace(op, instead=self.parts(graph, op, node, depth)))
        return replace(graph, ops=ops)

    def parts(self, graph: OpGraph, op: Op, node: fx.Node, depth: int) -> list[Op]:
        """The operators that compute what `op` does; none if PyTorch has no decomposition that lowers whole."""
        if op.kind in RECURRENT:
            return []
        used = {*graph.output_names, *graph.mutations.values(), *graph.users}
        wanted = [index for index, value in enumerate(op.outputs) if value.name in used]
        traced = _trace(node, wanted)
        if traced is None:
            return []
        try:
            body = self.to_graph(*traced, len(wanted))
            body = self.climb(body, traced[0], depth - 1)
        except Exception:  # whatever cannot be captured or lowered has no decomposition
            return []
        whole = {part.name for part in body.ops if not part.instead}
        left = [_left(body, target) for target in BUILT_IN]
        if not any(names.isdisjoint(whole) for names in left):
            return []
        body = body.expanded(frozenset().union(*left))
        found = _placed(body, op, _operands(node, op), wanted)
        return found if len(found) <= MOST_PARTS else []


def stuck(graph: OpGraph) -> frozenset[str]:
    """Names of the operators that a target of Foundry's own has no kernel for; others follow one of these."""
    return frozenset().union(*(_left(graph, target) for target in BUILT_IN))


def _left(graph: OpGraph, target: str) -> frozenset[str]:
    """Names of the operators that one target has no kernel for; all of them if the graph cannot be lowered."""
    try:
        return without_kernel(graph, target)
    except CannotLower:
        return frozenset(op.name for op in graph.ops)


def _trace(node: fx.Node, wanted: Sequence[int]) -> tuple[fx.Graph, Mapping[str, torch.Tensor]] | None:
    """The trace of a call's decomposition, which gives the `wanted` results, and its constants; None if it has none."""
    tensors = _tensors(node)

    def run(*given: torch.Tensor) -> tuple[Any, ...]:
        """The wanted results of the call, from our decomposition where there is one, for these tensors."""
        known = dict(zip(tensors, given, strict=True))
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda item: known[item])
        target: Any = node.target
        found = OWN[target](*args, **kwargs) if target in OWN else NotImplemented
        found = target(*args, **kwargs) if found is NotImplemented else found
        results = found if isinstance(found, tuple | list) else (found,)
        return tuple(results[index] for index in wanted)

    entries: dict[Any, Callable[..., Any]] = dict(_primitives())
    entries |= {key: item for key, item in global_decomposition_table["post_autograd"].items() if key is node.target}
    try:
        with warnings.catch_warnings(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            warnings.simplefilter("ignore")
            given = [_fake(item.meta["val"], mode) for item in tensors]
            module = make_fx(run, decomposition_table=entries)(*given)
            if any(item.target._schema.is_mutable for item in _calls(module)):
                module = make_fx(functionalize(module, remove="mutations"))(*given)
    except Exception:  # decompositions raise any exception for a call that they do not know
        return None
    if all(item.target is node.target for item in _calls(module)):
        return None
    constants = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    constants |= {name: item for name, item in vars(module).items() if isinstance(item, torch.Tensor)}
    return module.graph, constants


def _calls(module: fx.GraphModule) -> list[Any]:
    """The nodes that call operators."""
    return [item for item in module.graph.nodes if isinstance(item.target, torch._ops.OpOverload)]


@functools.cache
def _primitives() -> Mapping[Any, Callable[..., Any]]:
    """PyTorch's primitives (prims), of which some decompositions are made, as functions of ATen operators."""
    import torch._prims as prims

    packets: list[Any] = [getattr(torch.ops.prims, name, None) for name in prims.__all__]
    return {packet.default: packet.impl_aten for packet in packets if getattr(packet, "impl_aten", None) is not None}


def _tensors(node: fx.Node) -> list[fx.Node]:
    """The nodes of the tensors that a call reads, each once."""
    return [item for item in node.all_input_nodes if isinstance(item.meta.get("val"), torch.Tensor)]


def _fake(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A tensor without memory of the same shape, strides and dtype."""
    with mode:
        return torch.empty_strided(tuple(tensor.shape), tuple(tensor.stride()), dtype=tensor.dtype)


# ---------------------------------------------------------------- into the larger graph


def _placed(body: OpGraph, op: Op, operands: Sequence[str], wanted: Sequence[int]) -> list[Op]:
    """The operators of a decomposition under names of the graph that holds `op`; none if constants stand in the way.

    `operands` are the names of the values that are the body's inputs.
    """
    names = {value.name: name for value, name in zip(body.inputs, operands, strict=True)}
    inner = [value.name for value in [*body.state, *(value for part in body.ops for value in part.outputs)]]
    names |= {name: f"{op.name}__{name}" for name in inner}
    found: list[Op] = []
    for value in body.state:
        if value.data is None or value.spec.numel != 1:
            return []
        shape: list[Argument] = list(value.spec.shape)
        found.append(Op("aten.full.default", [shape, value.data[0]], {"dtype": value.spec.dtype}, [value]))
    results: list[Op] = []
    for index, item in zip(wanted, body.outputs, strict=True):
        result = replace(op.outputs[index], name=f"{op.outputs[index].name}__")
        if not isinstance(item, Ref) or not _are_alike(result, body.values[item.ref]):
            return []
        results.append(Op("aten.clone.default", [item], {}, [result]))
    return [
        replace(
            part.reading(names),
            outputs=[replace(value, name=names.get(value.name, value.name), role="op") for value in part.outputs],
            module=op.module,
            line=op.line,
        )
        for part in [*found, *body.ops, *results]
    ]


def _are_alike(one: Value, other: Value) -> bool:
    return (one.spec.shape, one.spec.dtype) == (other.spec.shape, other.spec.dtype)


def _operands(node: fx.Node, op: Op) -> list[str]:
    """Names in the graph of the tensors that a traced call reads, in the order of `_tensors`."""
    found: dict[fx.Node, str] = {}

    def pair(item: Any, argument: Argument) -> None:
        """Notes the graph's name of each node in a nested argument."""
        if isinstance(item, fx.Node) and isinstance(argument, Ref):
            found[item] = argument.ref
        elif isinstance(item, tuple | list) and isinstance(argument, list):
            for one, other in zip(item, argument, strict=True):
                pair(one, other)

    pair(node.args, op.args)
    for key, argument in op.kwargs.items():
        pair(node.kwargs[key], argument)
    return [found[item] for item in _tensors(node)]
