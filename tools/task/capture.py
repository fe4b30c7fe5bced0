"""Traces a model on its inputs into the small operator graph on which the rest of Foundry works.

Tracers in order: torch.export, the same following reads of values, make_fx, symbolic_trace (then export). Runs in a
worker: it executes the user's code.
"""

from __future__ import annotations

import linecache
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor

from foundry.knowledge.opgraph import WRITTEN, Argument, Arrangement, Op, OpGraph, Ref, Role, TensorSpec, Value
from foundry.tools.task.construction.tree import plain_attributes
from foundry.tools.task.decomposition.ladder import with_decompositions
from foundry.tools.task.flops import known_flops
from foundry.tools.task.loading import arrange, dtype_name, lines_in, rebuilt, spec_of
from foundry.tools.task.modes import other_answer
from foundry.tools.task.ran import with_flops_ran
from foundry.tools.task.tracers import (
    UNSEEN,
    Traced,
    quietly,
    trace_export,
    trace_make_fx,
    trace_symbolic,
    trace_values,
    traced_part,
)
from foundry.tools.task.values.masked import CannotMask
from foundry.tools.words import words

INLINE_ELEMENTS = 64  # elements of a constant that stands in the graph as its values
LONGEST_SOURCE = 80  # characters of a line of the task in a message
LONGEST_REASON = 100  # characters of a tracer's reason; a user reads three of them in one line

_CHANGED = (
    "forward changes and reads a tensor that is not part of the model's state: register it as a buffer in __init__"
)
# Checks that tracing inserts and that compute nothing.
_ASSERTIONS = frozenset({"_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range"})
# Fresh copies of constants, which export makes of `torch.tensor(...)` in forward.
_CONSTANT_COPIES = frozenset({"lift_fresh", "lift_fresh_copy", "clone", "detach", "alias"})
_RANDOM = frozenset(
    words(
        "rand randn randint randperm bernoulli multinomial normal uniform dropout native_dropout alpha_dropout "
        "feature_dropout rrelu_with_noise exponential rand_like randn_like randint_like geometric cauchy "
        "log_normal"
    )
)


Tracer = Literal["export", "values", "make_fx", "symbolic"]
# (address, shape, strides, dtype): the memory of a tensor's elements.
Place = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]


class CannotCapture(Exception):
    """The model has no operator graph; the message says in a sentence why. Its baseline can still be timed."""


class UnknownSize(CannotCapture):
    """A tracer found a size that depends on values; the tracer that follows reads of values may know a fixed one."""


@dataclass
class _Builder:
    """Collects the operator graph in one pass over the traced nodes."""

    traced: Traced
    constants: Mapping[str, torch.Tensor]
    attributes: Mapping[int, str]  # paths of the model's plain tensors by their ids
    changed: Collection[str]  # sources of constants that forward writes to
    inputs: list[Value] = field(default_factory=list)
    state: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    arguments: dict[fx.Node, Argument] = field(default_factory=dict)  # argument by which later operators read each node
    results: dict[fx.Node, list[Value]] = field(default_factory=dict)  # results of operators with several results
    state_of: dict[Place, tuple[Role, str]] = field(default_factory=dict)  # role and name of the model's own tensors
    file: str = ""  # the task's file, whose lines operators name
    # Nodes whose readers cannot be captured, with the reason.
    unusable: dict[fx.Node, str] = field(default_factory=dict)


def capture(model: nn.Module, inputs: Sequence[Any], *, overrides: Mapping[str, int] | None = None) -> OpGraph:
    """The operator graph of `model(*inputs)`, without gradients, at exactly these shapes. Raises CannotCapture.

    OpGraph.inputs lists tensors; each one's `source` is its position among the leaves of get_inputs(). A
    floating-point number counts as a float64 tensor without dimensions if the model only computes with it; other
    inputs that are no tensors are part of the graph and listed in OpGraph.fixed. Operators are functional ATen
    calls; norms, softmax, convolutions, attention, losses and recurrences stay whole.
    """
    takes, leaves = arrange(tuple(inputs))
    for index, item in enumerate(leaves):
        if not (item is None or isinstance(item, torch.Tensor | int | float | str)):
            raise CannotCapture(f"input {index} is a {type(item).__name__}; only tensors and numbers can be captured")
    graph = _trace_first(model, takes, leaves, overrides or {})
    if not any(isinstance(item, float) for item in leaves):
        return graph
    try:
        open_numbers = [torch.tensor(i, dtype=torch.float64) if isinstance(i, float) else i for i in leaves]
        general = _trace_first(model, takes, open_numbers, overrides or {})
    except CannotCapture:
        return graph  # Python branches on the number, or an operator takes it as an attribute
    is_same = general.tracer == graph.tracer and _result_types(general) == _result_types(graph)
    return general if is_same else graph


def _result_types(graph: OpGraph) -> list[Any]:
    """The outputs' specs, to compare: beside integers, a tensor without dimensions is promoted differently from a
    number."""
    return [graph.values[item.ref].spec if isinstance(item, Ref) else item for item in graph.outputs]


def _trace_first(model: nn.Module, takes: Arrangement, leaves: Sequence[Any], overrides: Mapping[str, int]) -> OpGraph:
    """The graph of the first tracer that can follow the model; raises CannotCapture with each tracer's reason."""
    tracers: list[tuple[Tracer, Callable[..., Traced]]] = [
        ("export", trace_export),
        ("values", trace_values),
        ("make_fx", trace_make_fx),
        ("symbolic", trace_symbolic),
    ]
    fixed: dict[str, Argument] = {
        str(index): item for index, item in enumerate(leaves) if item is None or isinstance(item, int | float | str)
    }
    problems: dict[str, Exception] = {}
    for name, tracer in tracers:
        if name == "values" and not _depends_on_values(problems["export"]):
            continue
        try:
            with quietly(), torch.no_grad():
                traced = tracer(model, takes, tuple(leaves))
            graph = _to_graph(traced, name, model, dict(overrides), fixed)
            graph = with_decompositions(graph, traced.graph, _graph_of_part)
            inputs = rebuilt(takes, iter(leaves))
            if name == "values":
                graph = with_flops_ran(replace(graph, assumptions=list(traced.assumptions)), model, inputs)
            return replace(graph, takes=takes, reads_mode=_reads_mode(model, inputs))
        except Exception as error:  # tracers raise any exception; each reason is kept for the message
            if isinstance(error, CannotCapture) and not isinstance(error, UnknownSize):
                raise
            problems[name] = error
            if name != "export" and isinstance(problems["export"], UnknownSize):
                raise CannotCapture(f"{problems['export']}{_why_not_masked(model, error)}") from error
    raise CannotCapture(f"no tracer could follow the model: {_why_none(model, problems)}")


def _graph_of_part(nodes: fx.Graph, constants: Mapping[str, torch.Tensor], results: int) -> OpGraph:
    """The operator graph of a decomposition."""
    return _to_graph(traced_part(nodes, constants, results), "make_fx", nn.Module(), {}, {})


def _reads_mode(model: nn.Module, inputs: Sequence[Any]) -> bool:
    """True if the model computes something else in its other mode (train or eval)."""
    try:
        return other_answer(model, inputs) != "same"
    except torch.OutOfMemoryError:
        return True  # a kernel then refuses the other mode, which is always allowed


def _why_none(model: nn.Module, problems: Mapping[str, Exception]) -> str:
    """Says what a user can change if the values of tensors are read, else each tracer's reason."""
    reading = [problem for problem in problems.values() if _depends_on_values(problem)]
    if not reading:
        by_reason: dict[str, list[str]] = {}
        for name, problem in problems.items():
            by_reason.setdefault(_first_line(problem), []).append(name)
        return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
    file = _file_of(model)
    line = next((lines[-1] for problem in reading if (lines := lines_in(file, problem))), 0)
    where = f" in line {line}" if line else ""
    source = _shortened(linecache.getline(file, line).strip()) if line else ""
    checks = next((found[1] for problem in reading if (found := _OPERATOR_CHECK.search(str(problem)))), ITEM)
    by = "" if checks == ITEM else f" (by aten.{checks})"
    more = "".join(_why_not_masked(model, problem) for problem in problems.values())
    if not source:
        return f"the values of tensors are read{where}{by}, as `if x.sum() > 0`, x.item() and x[mask] do{more}"
    advice = "let shapes alone decide, and mask what is left out"
    return f"the values of tensors are read{where}{by}, `{source}`: {advice}{more}"


def _shortened(source: str) -> str:
    """A line of source for a message, cut if it is long."""
    return source if len(source) <= LONGEST_SOURCE else f"{source[: LONGEST_SOURCE - 3]}..."


def _why_not_masked(model: nn.Module, problem: Exception) -> str:
    """The reason why a graph has no fixed sizes, with its line; "" for any other problem."""
    if not isinstance(problem, CannotMask):
        return ""
    line = _line_of(problem.args[1], _file_of(model)) if len(problem.args) > 1 else 0
    return f"; {f'line {line}' if line else 'forward'} {problem.args[0]}"


ITEM = "_local_scalar_dense"  # the operator that .item(), int() and `if` call
_OPERATOR_CHECK = re.compile(r"^aten\.(\w+)\.")  # how DataDependentOutputException names the operator


def _depends_on_values(problem: Exception) -> bool:
    """True if a tracer failed because Python, or an operator's own checks, read the elements of a tensor."""
    named = type(problem).__name__ == "DataDependentOutputException"
    return named or isinstance(problem, UnknownSize) or "data-dependent" in str(problem)


def _file_of(model: nn.Module) -> str:
    """The file of the model's forward; "" if that is no Python function."""
    return str(getattr(getattr(model.forward, "__code__", None), "co_filename", ""))


def _first_line(error: Exception) -> str:
    """An exception's type and first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:LONGEST_REASON]}" if lines else type(error).__name__


class ComplexNumber(Exception):
    """An argument of an operator is a complex number; the message says which."""


def _to_graph(
    traced: Traced,
    tracer: Tracer,
    model: nn.Module,
    overrides: dict[str, int],
    fixed: dict[str, Argument],
) -> OpGraph:
    """The operator graph of a trace, without dead operators. Raises CannotCapture for parts that a graph cannot
    hold."""
    changed = {source for kind, source in traced.outputs if kind == UNSEEN}
    attributes = {id(tensor): path for path, tensor in plain_attributes(model)}
    builder = _Builder(traced, traced.constants, attributes, changed, state_of=_state_of(model), file=_file_of(model))
    outputs: list[Argument] = []
    mutations: dict[str, str] = {}
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            _add_placeholder(builder, node)
        elif node.op == "call_function":
            _add_call(builder, node)
        elif node.op == "output":
            outputs, mutations = _read_outputs(builder, node)
        elif node.op == "get_attr":
            _add_constant(builder, node, traced.constants.get(str(node.target)))
        else:
            raise CannotCapture(f"the trace holds a {node.op} of {node.target}, which is not an operator")
    graph = OpGraph(
        inputs=builder.inputs,
        state=builder.state,
        ops=builder.ops,
        outputs=outputs,
        tracer=tracer,
        training=model.training,
        arrangement=traced.arrangement,
        mutations=mutations,
        overrides=overrides,
        fixed=fixed,
    )
    graph = _without_dead_code(graph)
    if any(value.source in changed for value in graph.state):
        raise CannotCapture(_CHANGED)
    return graph


# ---------------------------------------------------------------- leaves


def _add_placeholder(builder: _Builder, node: fx.Node) -> None:
    """Adds one placeholder of the trace as an input, a piece of the model's state, or a constant."""
    kind, source = builder.traced.placeholders[node.name]
    if kind == "literal":
        return  # the tracer baked the number into the calls that use it
    if kind == "constant":
        _add_constant(builder, node, builder.constants.get(source), source)
        return
    value = Value(node.name, spec_of(node.meta["val"]), cast(Role, kind), source)
    builder.arguments[node] = Ref(node.name)
    (builder.inputs if kind == "input" else builder.state).append(value)


def _state_of(model: nn.Module) -> dict[Place, tuple[Role, str]]:
    """The model's parameters and buffers by their memory: forward may read `self.weight.data`."""
    persistent = model.state_dict(keep_vars=True)
    learned = dict(model.named_parameters(remove_duplicate=False))
    held = {key: item for key, item in persistent.items() if isinstance(item, torch.Tensor) and item.numel()}
    return {_place_of(item): ("parameter" if key in learned else "buffer", key) for key, item in held.items()}


def _place_of(tensor: torch.Tensor) -> Place:
    """(address, shape, strides, dtype), equal for tensors that are the same view of the same memory."""
    is_plain = tensor.layout is torch.strided and not isinstance(tensor, FakeTensor)
    return (tensor.data_ptr() if is_plain else 0, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


def _add_constant(builder: _Builder, node: fx.Node, tensor: torch.Tensor | None, source: str = "") -> None:
    """Adds a constant: as the model's own tensor in the same memory, as a plain attribute, or by its values. Raises
    CannotCapture for a constant that has no value or is complex."""
    if tensor is None:
        raise CannotCapture(f"the constant {node.name} has no value in the trace")
    if source in builder.changed and tensor.numel() > INLINE_ELEMENTS:
        builder.unusable[node] = _CHANGED
        return
    known = builder.state_of.get(_place_of(tensor))
    if known is None and tensor.numel() > INLINE_ELEMENTS and id(tensor) in builder.attributes:
        known = "constant", builder.attributes[id(tensor)]
    if known is not None:
        builder.state.append(Value(node.name, spec_of(tensor.detach()), *known))
        builder.arguments[node] = Ref(node.name)
        return
    if tensor.numel() > INLINE_ELEMENTS:
        builder.unusable[node] = (
            f"forward uses a tensor of shape {list(tensor.shape)} ({source or node.name}) that is no attribute of a "
            "module: make it one in __init__ (self.table = ...); parameters in a list belong in an nn.ParameterList, "
            "layers in an nn.ModuleList"
        )
        return
    if tensor.is_complex():
        raise CannotCapture(f"the constant {source or node.name} is complex")
    data = [float(item) for item in tensor.detach().cpu().reshape(-1).tolist()]
    spec = spec_of(tensor.detach().contiguous())
    if source not in builder.changed:
        source = builder.attributes.get(id(tensor), source)
    builder.state.append(Value(node.name, spec, "constant", source or node.name, data))
    builder.arguments[node] = Ref(node.name)


# ---------------------------------------------------------------- operators


def _add_call(builder: _Builder, node: fx.Node) -> None:
    """Adds one traced call: skips checks and copies of constants, resolves getitem, and adds all other operators.
    Raises CannotCapture for operators outside of ATen, for random numbers, and for writes in place that remain."""
    if node.target is operator.getitem:
        producer, index = node.args[0], node.args[1]
        assert isinstance(producer, fx.Node) and isinstance(index, int)
        builder.arguments[node] = Ref(builder.results[producer][index].name)
        return
    if not isinstance(node.target, torch._ops.OpOverload):
        raise CannotCapture(f"{getattr(node.target, '__name__', node.target)} is not an ATen operator")
    if node.target.namespace != "aten":
        raise CannotCapture(f"{node.target} is a custom operator, which the kernel compiler cannot read")
    kind = node.target._schema.name.removeprefix("aten::")
    if kind in _ASSERTIONS:
        return
    if kind in _CONSTANT_COPIES and _is_inline_constant(builder, node.args[0]):
        builder.arguments[node] = builder.arguments[cast(fx.Node, node.args[0])]
        return
    if kind == "copy" and _looks_alike(*node.args[:2]):  # every element is overwritten
        builder.arguments[node] = _argument(builder, node.args[1])
        return
    if kind in _RANDOM:
        raise CannotCapture(f"the model draws random numbers ({kind}), so no kernel can be proven against it")
    if kind == "instance_norm" and node.args[3] is not None and node.args[5]:
        raise CannotCapture("instance_norm updates running statistics, which its operator does not show")
    if node.target._schema.is_mutable:
        raise CannotCapture(f"{kind} still writes in place in the functional trace")
    _add_op(builder, node, str(node.target))


def _looks_alike(one: Any, other: Any) -> bool:
    """True if two nodes' tensors have the same shape and dtype."""
    values = [item.meta.get("val") if isinstance(item, fx.Node) else None for item in (one, other)]
    first, second = ((value.shape, value.dtype) if isinstance(value, torch.Tensor) else None for value in values)
    return first is not None and first == second


def _is_inline_constant(builder: _Builder, argument: Any) -> bool:
    """True if an argument is a constant that stands in the graph by its values."""
    known = builder.arguments.get(argument) if isinstance(argument, fx.Node) else None
    return isinstance(known, Ref) and any(value.name == known.ref and value.data is not None for value in builder.state)


def _add_op(builder: _Builder, node: fx.Node, target: str) -> None:
    """Adds an operator to the graph: arguments, results, FLOPs, the module and line that called it. Raises
    CannotCapture."""
    result = node.meta.get("val")
    _check_sizes(result, target, _line_of(node, builder.file))
    if isinstance(result, torch.Tensor):
        outputs = [Value(node.name, spec_of(result), "op")]
        builder.arguments[node] = Ref(node.name)
    elif isinstance(result, tuple | list) and result:
        outputs = [Value(f"{node.name}_out{index}", _spec_or_empty(item), "op") for index, item in enumerate(result)]
        builder.results[node] = outputs
        builder.arguments[node] = [Ref(value.name) for value in outputs]
    else:
        raise ValueError(
            f"data-dependent: {target} gives a {type(result).__name__}, not a tensor: sizes depend on the data"
        )
    try:
        args = [_complex_tensor(builder, node, item) or _argument(builder, item) for item in node.args]
        kwargs = {key: _argument(builder, item) for key, item in node.kwargs.items()}
    except ComplexNumber as error:
        line = _line_of(node, builder.file)
        raise CannotCapture(f"line {line} has {error}" if line else f"an operator takes {error}") from error
    kwargs = {key: item for key, item in kwargs.items() if key not in ("device", "pin_memory", "layout")}
    shapes = [tuple(item.meta["val"].shape) for item in _tensor_arguments(node)]
    flops = known_flops(
        node.target._schema.name.removeprefix("aten::"),  # type: ignore[union-attr]
        args,
        kwargs,
        shapes,
        [value.spec.shape for value in outputs],
    )
    module = _module_path(node)
    line = _line_of(node, builder.file)
    builder.ops.append(Op(target, args, kwargs, outputs, flops=flops, module=module, line=line))


def _complex_tensor(builder: _Builder, node: fx.Node, item: Any) -> Ref | None:
    """A complex number beside a tensor as a tensor made of two constants; None for anything else."""
    result = node.meta.get("val")
    kind = cast(torch._ops.OpOverload, node.target)._schema.name.removeprefix("aten::")
    if not isinstance(item, complex) or kind not in ("add", "sub", "rsub", "mul", "div") or result is None:
        return None
    name, real = node.name, spec_of(torch.zeros((), dtype=result.dtype.to_real()))
    numbers = {f"{name}_real": item.real, f"{name}_imaginary": item.imag}
    builder.state += [Value(part, real, "constant", part, [number]) for part, number in numbers.items()]
    made = Value(f"{name}_number", replace(real, dtype=dtype_name(result.dtype)), "op")
    builder.ops.append(Op("aten.complex.default", list(map(Ref, numbers)), {}, [made]))
    return Ref(made.name)


def _check_sizes(result: Any, target: str, line: int) -> None:
    """Raises CannotCapture, or ValueError, for a tensor whose size is known only when the model runs."""
    for item in result if isinstance(result, tuple | list) else [result]:
        if isinstance(item, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in item.shape):
            if not line:
                raise ValueError("data-dependent sizes")  # another tracer may know the line
            raise UnknownSize(
                f"line {line} makes a tensor whose size depends on values ({target.split('.')[1]}), as x[mask] and "
                "nonzero do: keep all elements, and neutralise the dropped ones where they are reduced (0 for a sum, "
                "-inf for a maximum or softmax, a count of the kept ones for a mean)"
            )


def _spec_or_empty(item: Any) -> TensorSpec:
    """The spec of a result; an undefined result counts as a tensor of 0 elements, so that positions keep ATen's
    order."""
    return spec_of(item) if isinstance(item, torch.Tensor) else TensorSpec((0,), (1,), "float32")


def _tensor_arguments(node: fx.Node) -> list[fx.Node]:
    """Tensor arguments with repetitions (mm(x, x) has two), which all_input_nodes would merge."""
    found: list[fx.Node] = []

    def collect(item: Any) -> None:
        """Appends the nodes with a tensor value in an argument to `found`."""
        if isinstance(item, fx.Node):
            if isinstance(item.meta.get("val"), torch.Tensor):
                found.append(item)
        elif isinstance(item, tuple | list):
            for member in item:
                collect(member)

    collect(node.args)
    collect(list(node.kwargs.values()))
    return found


def _argument(builder: _Builder, item: Any) -> Argument:
    """An argument of an operator for the graph: a Ref for a tensor, a name for a dtype, numbers and lists as they are.

    Raises CannotCapture for values that depend on the data and for kinds that the graph cannot hold.
    """
    if isinstance(item, fx.Node):
        if item in builder.unusable:
            raise CannotCapture(builder.unusable[item])
        if item not in builder.arguments:
            raise ValueError(f"data-dependent: {item.name} depends on the data, not only on shapes")
        return builder.arguments[item]
    if item is None or isinstance(item, bool | int | float | str):
        return item
    if isinstance(item, tuple | list):
        return [_argument(builder, member) for member in item]
    if isinstance(item, torch.dtype | torch.memory_format | torch.layout):
        return str(item).removeprefix("torch.")
    if isinstance(item, torch.device):
        return item.type
    if isinstance(item, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise CannotCapture(f"a size depends on the data ({item})")
    if isinstance(item, complex):
        raise ComplexNumber(f"the complex number {item}; the kernel compiler has real numbers only")
    raise CannotCapture(f"an operator takes a {type(item).__name__}, which the graph cannot hold")


def _line_of(node: fx.Node, file: str) -> int:
    """The line of a file that called an operator; 0 if the trace does not have it."""
    lines = re.findall(rf'File "{re.escape(file)}", line (\d+)', node.meta.get("stack_trace") or "") if file else []
    return int(lines[-1]) if lines else 0


def _module_path(node: fx.Node) -> str:
    """The path of the module whose forward called an operator."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    return path.removeprefix("L['self'].").removeprefix("L__self___")


# ---------------------------------------------------------------- outputs


def _read_outputs(builder: _Builder, node: fx.Node) -> tuple[list[Argument], dict[str, str]]:
    """(results, values written to the model's buffers and to inputs by their keys).

    Raises CannotCapture if nothing is returned or written to an input, or for writes to other tensors.
    """
    returned = node.args[0]
    items = list(returned) if isinstance(returned, tuple | list) else [returned]
    outputs: list[Argument] = []
    mutations: dict[str, str] = {}
    is_input_written = False
    for position, item in enumerate(items):
        kind, source = builder.traced.outputs[position]
        if kind == UNSEEN:
            continue
        argument = _argument(builder, item)
        if kind == "user input mutation":
            if argument == Ref(source):
                continue  # it is left with the value that it had
            kind, source, is_input_written = "mutation", WRITTEN + builder.traced.placeholders[source][1], True
        if kind == "mutation":
            if not isinstance(argument, Ref):
                raise CannotCapture(f"{source} is written with a number")
            mutations[source] = argument.ref
        elif kind == "result":
            outputs.append(argument)
        else:
            raise CannotCapture(f"forward writes to {kind} {source} in place")
    if not any(isinstance(item, Ref) for item in outputs) and not is_input_written:
        raise CannotCapture("forward returns no tensor")
    return outputs, mutations


def _without_dead_code(graph: OpGraph) -> OpGraph:
    """Drops operators and state that reach neither an output nor a buffer."""
    needed = set(graph.output_names) | set(graph.mutations.values())
    ops: list[Op] = []
    for op in reversed(graph.ops):
        if any(value.name in needed for value in op.outputs):
            needed.update(op.reads)
            ops.append(op)
    state = [value for value in graph.state if value.name in needed]
    return replace(graph, state=state, ops=ops[::-1])
