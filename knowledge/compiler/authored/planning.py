"""The plan of an author's kernel: the buffers that it may use by name, and one step that is the whole forward."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from foundry.knowledge.candidate import AuthoredKernel
from foundry.knowledge.compiler.ir.kernels import AuthoredStep, Buffer, OutputView, Plan
from foundry.knowledge.compiler.rules.builder import Builder
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import WRITTEN, DType, OpGraph, Ref, contiguous_strides

NAME = "authored"  # name of the one step
_BARE = re.compile(r"[A-Za-z_]\w*\Z")


def authored_buffers(graph: OpGraph) -> dict[str, Buffer]:
    """Buffers that the code may be given, by name: inputs, parameters, outputs, and new values of buffers.

    Outputs are contiguous. Raises CannotLower for a graph with nested results.
    """
    graph = graph.with_dense_inputs()
    builder = Builder(graph, "")
    for value in [*graph.inputs, *graph.state]:
        if value.data is None:
            builder.leaf(value)
    found = dict(builder.buffers)
    for name, value_name in _results(graph):
        spec = graph.values[value_name].spec
        free = builder.identifier(name)
        found[free] = Buffer(free, spec.shape, contiguous_strides(spec.shape), spec.dtype, "output")
    inputs = {WRITTEN + value.source: value.name for value in graph.inputs}
    for key, value_name in graph.mutations.items():
        spec = graph.values[value_name].spec
        free = builder.identifier(f"new_{inputs.get(key, key)}")
        found[free] = Buffer(
            free,
            shape=spec.shape,
            strides=contiguous_strides(spec.shape),
            dtype=spec.dtype,
            role="temporary",
            source=key,
        )
    return found


def _results(graph: OpGraph) -> Iterator[tuple[str, str]]:
    """(buffer's name, value of the graph) of each tensor that forward returns, each once."""
    own = (item for place, item in enumerate(graph.outputs) if str(place) not in graph.returned)
    names = list(dict.fromkeys(item.ref for item in own if isinstance(item, Ref)))
    if len(names) == 1:
        yield "out", names[0]
    elif names:
        yield from ((f"out{number}", name) for number, name in enumerate(names))


def sizes(buffers: Mapping[str, Buffer]) -> dict[str, int]:
    """Constants for code and expressions: x_n is the number of elements of x, x_d0, x_d1, ... are its extents."""
    found: dict[str, int] = {}
    for name, buffer in buffers.items():
        found[f"{name}_n"] = buffer.numel
        found |= {f"{name}_d{axis}": extent for axis, extent in enumerate(buffer.shape)}
    return found


def strides_of(buffers: Mapping[str, Buffer]) -> dict[str, int]:
    """Constants for buffers that are not contiguous: x_s0, x_s1, ... are its strides in elements."""
    return {
        f"{name}_s{axis}": stride
        for name, buffer in buffers.items()
        if buffer.strides != contiguous_strides(buffer.shape)
        for axis, stride in enumerate(buffer.strides)
    }


def plan_authored(graph: OpGraph, kernel: AuthoredKernel, *, ieee_only: bool = False) -> Plan:
    """The plan whose one step is the author's kernel.

    Raises CannotLower if an output is never written or a result of forward has no buffer.
    """
    known = authored_buffers(graph)
    named = {arg for launch in kernel.launches for arg in launch.args if _BARE.match(arg)}
    written = tuple(name for name, buffer in known.items() if buffer.role in ("output", "temporary"))
    for name in written:
        if name not in named:
            raise CannotLower(f"no launch is given {name}, which has to be written")
    read = tuple(name for name, b in known.items() if b.role == "input" or (b.role == "parameter" and name in named))
    buffers = {name: known[name] for name in (*read, *written)}
    write_backs = {buffers[name].source: name for name in written if buffers[name].role == "temporary"}
    for name in write_backs.values():
        buffers[name] = replace(buffers[name], source="")
    step = AuthoredStep(
        NAME, kernel, reads=read, writes=written, flops=graph.flops, ops=tuple(op.name for op in graph.ops)
    )
    given = [graph.returned.get(str(place), "") for place in range(len(graph.outputs))]
    outputs = tuple(
        OutputView("", given=place) if place else _output(item, graph, buffers)
        for item, place in zip(graph.outputs, given, strict=True)
    )
    return Plan(
        buffers, (step,), outputs, graph.arrangement, write_backs=write_backs, fixed=graph.fixed, ieee_only=ieee_only
    )


def _output(item: object, graph: OpGraph, buffers: Mapping[str, Buffer]) -> OutputView:
    """The view of one result of forward on its output buffer, or its literal value. Raises CannotLower."""
    if isinstance(item, Ref):
        names = dict.fromkeys(graph.output_names)
        written = [buffer for buffer in buffers.values() if buffer.role == "output"]
        buffer = written[list(names).index(item.ref)]
        return OutputView(buffer.name, buffer.shape, buffer.strides)
    if item is None or isinstance(item, bool | int | float):
        return OutputView("", literal=item)
    raise CannotLower(f"forward returns a {type(item).__name__}")


SCRATCH_TYPES: tuple[DType, ...] = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8")
