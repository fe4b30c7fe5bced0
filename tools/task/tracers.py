"""The tracers behind capture. Each gives the same kind of functional ATen trace with named inputs and outputs."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import fx, nn
from torch._decomp import decompositions
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from foundry.knowledge.opgraph import Arrangement
from foundry.tools.task.form.calls import call, parted
from foundry.tools.task.loading import arrange, flatten, rebuilt
from foundry.tools.task.modes import kept_buffers
from foundry.tools.task.values.checked import alike, varied
from foundry.tools.task.values.doors import open_doors
from foundry.tools.task.values.masked import CannotMask
from foundry.tools.task.values.rounds import join_rounds
from foundry.tools.task.values.selections import with_fixed_sizes

UNSEEN = "unseen"
LAYERS = ("one_layer_lstm", "one_layer_rnn")  # functions of torch._decomp.decompositions


@dataclass(frozen=True)
class Traced:
    """A functional ATen trace.

    `placeholders` maps a placeholder to (role or "literal", source). `outputs` gives for each returned item
    ("result", "") or ("mutation", state-dict key), or (UNSEEN, source) if it writes to a plain attribute of the
    model.
    """

    graph: fx.Graph
    placeholders: Mapping[str, tuple[str, str]]
    outputs: list[tuple[str, str]]
    constants: Mapping[str, torch.Tensor]
    arrangement: Arrangement  # arrangement of the results
    assumptions: tuple[str, ...] = ()  # what the trace takes for granted about values, a sentence each


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppresses output and logging: a failing tracer prints its whole trace, and its exception holds the reason."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with contextlib.redirect_stderr(io.StringIO()):
                yield
    finally:
        logging.disable(level)


def trace_export(model: nn.Module, takes: Arrangement, leaves: tuple[Any, ...]) -> Traced:
    """torch.export's training IR made functional; composite operators stay whole (empty decomposition table).

    `leaves` are the flattened inputs, and `takes` is their arrangement for the model.
    """
    if isinstance(model, fx.GraphModule):
        flat, arrangement = _flattened(model, takes)
        return _from_program(_export(flat, leaves), leaves, arrangement)
    with _flat_forward(model, takes) as arrangements:
        program = _export(model, leaves)
    return _from_program(program, leaves, arrangements[-1])


def _export(model: nn.Module, inputs: tuple[Any, ...]) -> ExportedProgram:
    """Exports a model and keeps composite operators whole."""
    with _short_recurrences():
        program: ExportedProgram = torch.export.export(model, inputs, strict=False).run_decompositions({})
        return program


def _flattened(module: fx.GraphModule, takes: Arrangement) -> tuple[fx.GraphModule, Arrangement]:
    """A graph with the same results as a flat tuple, and their arrangement. For graph modules, whose code calls no
    `forward`. Raises TypeError for nested inputs."""
    if not takes.is_flat:
        raise TypeError("a graph of nested inputs is not followed")
    graph = fx.Graph()
    arrangement, results = arrange(graph.graph_copy(module.graph, {}))
    graph.output(tuple(results))
    return fx.GraphModule(module, graph), arrangement


@contextlib.contextmanager
def _flat_forward(model: nn.Module, takes: Arrangement) -> Iterator[list[Arrangement]]:
    """Lets forward take flat inputs and return flat results, and keeps the results' arrangement."""
    arrangements: list[Arrangement] = []
    forward = model.forward

    def flat(*leaves: Any) -> tuple[Any, ...]:
        """Calls forward with flat leaves arranged as its arguments; returns flat results and notes their
        arrangement."""
        arrangement, results = arrange(call(forward, rebuilt(takes, iter(leaves))))
        arrangements.append(arrangement)
        return tuple(results)

    if takes.is_flat:
        functools.update_wrapper(flat, forward)  # kernels are named after the inputs
    with mock.patch.object(model, "forward", flat):
        yield arrangements


@contextlib.contextmanager
def _short_recurrences() -> Iterator[None]:
    """Computes only the first step of recurrent layers on fake tensors, because one step tells all shapes.

    PyTorch would walk all steps, a minute for six layers of 512 steps. The last states get the shapes of the given
    ones; in torch 2.11 those of an LSTM have one dimension more.
    """

    def first_step_only(walk: Callable[..., Any]) -> Callable[..., Any]:
        """The layer's function, which on fake tensors walks one time step only."""

        def layer(steps: torch.Tensor, states: Any, *args: Any, **kwargs: Any) -> Any:
            """Walks all steps; on fake tensors the first one, with results of the full shape."""
            if not isinstance(steps, FakeTensor):
                return walk(steps, states, *args, **kwargs)
            found, last = walk(steps[:1], states, *args, **kwargs)
            return found.new_empty((steps.shape[0], *found.shape[1:])), _shaped(last, states)

        return layer

    with contextlib.ExitStack() as patches:
        for name in LAYERS:
            walk = getattr(decompositions, name, None)
            if walk is not None:
                patches.enter_context(mock.patch.object(decompositions, name, first_step_only(walk)))
        yield


def _shaped(last: Any, given: Any) -> Any:
    """Reshapes the last states, a tensor or a tuple of them, to the shapes of those given."""
    if isinstance(last, torch.Tensor):
        return last.reshape(given.shape)
    return tuple(_shaped(*pair) for pair in zip(last, given, strict=True))


def trace_values(model: nn.Module, takes: Arrangement, leaves: tuple[Any, ...]) -> Traced:
    """Traces by export with symbols for what Python reads, then gives every chosen row a fixed place and a mask."""
    with open_doors(model) as doors:
        traced = trace_export(model, takes, leaves)
    graph = with_fixed_sizes(traced.graph, traced.constants, doors.iterated)
    found = replace(traced, graph=graph, assumptions=tuple(doors.assumptions))
    with kept_buffers(model):
        for given in varied(leaves):
            wanted = _answer(model, takes, given)
            if wanted is not None and not alike(_run(found, model, given), wanted):
                raise CannotMask("; ".join(["gives another answer for other inputs", *doors.assumptions]))
    return replace(found, graph=join_rounds(graph))  # not run by PyTorch, which would copy a matrix for each row


def _answer(model: nn.Module, takes: Arrangement, leaves: Sequence[Any]) -> list[Any] | None:
    """The model's results; None if it refuses the inputs."""
    copies = (item.clone() if isinstance(item, torch.Tensor) else item for item in leaves)
    try:
        return arrange(call(model, rebuilt(takes, copies)))[1]
    except Exception:  # raised by the task's code for inputs of ours
        return None


def _run(traced: Traced, model: nn.Module, leaves: Sequence[Any]) -> list[Any]:
    """The results of a trace."""
    held = {**dict(model.named_buffers()), **dict(model.named_parameters()), **traced.constants}
    roles = [traced.placeholders[node.name] for node in traced.graph.nodes if node.op == "placeholder"]
    given = [leaves[int(source)] if role in ("input", "literal") else held[source] for role, source in roles]
    found = fx.GraphModule(dict(traced.constants), traced.graph)(*given)
    return [item for item, (kind, _) in zip(found, traced.outputs, strict=True) if kind == "result"]


def trace_symbolic(model: nn.Module, takes: Arrangement, leaves: tuple[Any, ...]) -> Traced:
    """Traces by symbolic_trace, then export: Python that does not depend on tensors is resolved before export sees
    it."""
    return trace_export(fx.symbolic_trace(model), takes, leaves)


@contextlib.contextmanager
def _lists_read_values() -> Iterator[None]:
    """Lets tolist() and numpy() of a traced tensor fail as item() does; else its numbers would stand in the trace."""

    def reading(convert: Callable[..., Any]) -> Callable[..., Any]:
        """The conversion, which first reads a value."""

        def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            """The converted tensor, after one of its values was read."""
            if tensor.numel():
                tensor.detach().reshape(-1)[0].item()
            return convert(tensor, *args, **kwargs)

        return read

    with contextlib.ExitStack() as patches:
        for name in ("tolist", "numpy"):
            patches.enter_context(mock.patch.object(torch.Tensor, name, reading(getattr(torch.Tensor, name))))
        yield


def trace_make_fx(model: nn.Module, takes: Arrangement, leaves: tuple[Any, ...]) -> Traced:
    """Traces by make_fx on real tensors; export then makes the trace functional.

    This follows Python that export refuses.

    Parameters and buffers go in as arguments, and their roles are put back by position.
    """
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    saved = {key: value.detach().clone() for key, value in model.named_buffers()}
    positions = [index for index, item in enumerate(leaves) if isinstance(item, torch.Tensor)]
    arrangements: list[Arrangement] = []

    def run(values: list[torch.Tensor], given: list[torch.Tensor]) -> tuple[Any, ...]:
        """Calls the model with these parameters and inputs; returns flat results and notes their arrangement."""
        fresh = iter(given)
        every = (next(fresh) if isinstance(item, torch.Tensor) else item for item in leaves)
        result = functional_call(model, dict(zip(state, values, strict=True)), *parted(rebuilt(takes, every)))
        arrangement, results = arrange(result)
        arrangements.append(arrangement)
        return tuple(results)

    arguments = ([value.detach() for value in state.values()], [leaves[index] for index in positions])
    with _lists_read_values():
        module = make_fx(run, pre_dispatch=True)(*arguments)
    traced = _from_program(_export(module, arguments), flatten(arguments), arrangements[-1])
    for key, value in saved.items():  # tracing on real tensors ran the model once
        model.get_buffer(key).copy_(value)
    parameters = dict(model.named_parameters())
    sources = [("parameter" if key in parameters else "buffer", key) for key in state]
    sources += [("input", str(index)) for index in positions]
    names = [name for name, (role, _) in traced.placeholders.items() if role in ("input", "literal")]
    own = {  # plain attributes of the model, which its state lacks
        name: ("constant", source)
        for name, (role, source) in traced.placeholders.items()
        if role in ("buffer", "parameter")
    }
    roles = {**traced.placeholders, **own, **dict(zip(names, sources, strict=True))}
    outputs = [_name_mutation(role, source, roles) for role, source in traced.outputs]
    constants = {**traced.constants, **dict(module.named_buffers()), **dict(module.named_parameters())}
    return Traced(traced.graph, roles, outputs, constants, traced.arrangement)


def _name_mutation(role: str, source: str, roles: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    """The output kind of a mutation, with the state-dict key behind its source."""
    owner, key = roles.get(source, ("", ""))
    if role == "mutation":  # a buffer of the trace itself
        return UNSEEN, source
    return ("mutation", key) if owner in ("parameter", "buffer") else (role, source)


def _from_program(program: ExportedProgram, leaves: Sequence[Any], arrangement: Arrangement) -> Traced:
    """A trace from torch.export's program: its graph, and the role of each input and output."""
    roles: dict[str, tuple[str, str]] = {}
    position = 0
    for item in program.graph_signature.input_specs:
        name = item.arg.name
        source = item.target or ""
        if item.kind is InputKind.USER_INPUT:
            is_tensor = isinstance(leaves[position], torch.Tensor)
            roles[name] = ("input", str(position)) if is_tensor else ("literal", str(position))
            position += 1
        elif item.kind is InputKind.PARAMETER:
            roles[name] = ("parameter", source)
        elif item.kind is InputKind.BUFFER:
            roles[name] = ("buffer", source)
        else:
            roles[name] = ("constant", source)
    outputs: list[tuple[str, str]] = []
    for result in program.graph_signature.output_specs:
        if result.kind is OutputKind.USER_OUTPUT:
            outputs.append(("result", ""))
        elif result.kind.name in ("BUFFER_MUTATION", "PARAMETER_MUTATION"):  # torch 2.6 knows no mutated parameters
            outputs.append(("mutation", str(result.target)))
        else:
            outputs.append((result.kind.name.lower().replace("_", " "), str(result.target)))
    return Traced(program.graph_module.graph, roles, outputs, program.constants, arrangement)


def traced_part(graph: fx.Graph, constants: Mapping[str, torch.Tensor], results: int) -> Traced:
    """The trace of a function of tensors, whose arguments are inputs in their order."""
    names = [node.name for node in graph.nodes if node.op == "placeholder"]
    roles = {name: ("input", str(index)) for index, name in enumerate(names)}
    return Traced(graph, roles, [("result", "")] * results, constants, Arrangement.flat(results))
