"""The three tracers behind capture, each giving the same functional ATen trace with its inputs and outputs named."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

UNSEEN = "unseen"
LAYERS = ("one_layer_lstm", "one_layer_rnn")  # in torch._decomp.decompositions


@dataclass(frozen=True)
class Traced:
    """`placeholders` maps a placeholder to (role or "literal", source), `outputs` each returned item to
    ("result", "") or ("mutation", state-dict key) or what else it writes to, UNSEEN where that is no part of the state:
    a tensor that is a plain attribute of the model."""

    graph: fx.Graph
    placeholders: Mapping[str, tuple[str, str]]
    outputs: list[tuple[str, str]]
    constants: Mapping[str, torch.Tensor]
    arrangement: Arrangement  # of the results


def trace_export(model: nn.Module, takes: Arrangement, leaves: tuple[Any, ...]) -> Traced:
    """torch.export's training IR made functional; composite operators stay whole (empty decomposition table). `leaves`
    are the inputs, which the model takes arranged."""
    if isinstance(model, fx.GraphModule):
        flat, arrangement = _flattened(model, takes)
        return _from_program(_export(flat, leaves), leaves, arrangement)
    with _flat_forward(model, takes) as arrangements:
        program = _export(model, leaves)
    return _from_program(program, leaves, arrangements[-1])


def _export(model: nn.Module, inputs: tuple[Any, ...]) -> ExportedProgram:
    with _short_recurrences():
        program: ExportedProgram = torch.export.export(model, inputs, strict=False).run_decompositions({})
        return program


def _flattened(module: fx.GraphModule, takes: Arrangement) -> tuple[fx.GraphModule, Arrangement]:
    """A graph with the same results as a flat tuple, and how they were arranged. Its code calls no `forward`."""
    if not takes.is_flat:
        raise TypeError("a graph of nested inputs is not followed")
    graph = fx.Graph()
    arrangement, results = arrange(graph.graph_copy(module.graph, {}))
    graph.output(tuple(results))
    return fx.GraphModule(module, graph), arrangement


@contextlib.contextmanager
def _flat_forward(model: nn.Module, takes: Arrangement) -> Iterator[list[Arrangement]]:
    """Lets forward take its inputs, and return its results, side by side, and keeps how the results were arranged."""
    arrangements: list[Arrangement] = []
    forward = model.forward

    def flat(*leaves: Any) -> tuple[Any, ...]:
        arrangement, results = arrange(call(forward, rebuilt(takes, iter(leaves))))
        arrangements.append(arrangement)
        return tuple(results)

    if takes.is_flat:
        functools.update_wrapper(flat, forward)  # kernels have the names of the inputs
    with mock.patch.object(model, "forward", flat):
        yield arrangements


@contextlib.contextmanager
def _short_recurrences() -> Iterator[None]:
    """What a recurrent layer of fake tensors gives is known from one step; PyTorch would walk them all to learn shapes,
    a minute for six layers of 512 steps. Its last states have the shapes of those that it was given, which they have
    not in torch 2.11: there those of an LSTM have one dimension more."""

    def first_step_only(walk: Callable[..., Any]) -> Callable[..., Any]:
        def layer(steps: torch.Tensor, states: Any, *args: Any, **kwargs: Any) -> Any:
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
    """The last states, a tensor or a tuple of them, in the shapes of those given."""
    if isinstance(last, torch.Tensor):
        return last.reshape(given.shape)
    return tuple(_shaped(*pair) for pair in zip(last, given, strict=True))


def trace_symbolic(model: nn.Module, takes: Arrangement, leaves: tuple[Any, ...]) -> Traced:
    """symbolic_trace keeps Python that tensors do not decide out of the way of export."""
    return trace_export(fx.symbolic_trace(model), takes, leaves)


def trace_make_fx(model: nn.Module, takes: Arrangement, leaves: tuple[Any, ...]) -> Traced:
    """make_fx on real tensors follows Python that export refuses; export then makes its trace functional.

    Parameters and buffers go in as arguments, and their roles are put back by position.
    """
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    saved = {key: value.detach().clone() for key, value in model.named_buffers()}
    positions = [index for index, item in enumerate(leaves) if isinstance(item, torch.Tensor)]
    arrangements: list[Arrangement] = []

    def run(values: list[torch.Tensor], given: list[torch.Tensor]) -> tuple[Any, ...]:
        fresh = iter(given)
        every = (next(fresh) if isinstance(item, torch.Tensor) else item for item in leaves)
        result = functional_call(model, dict(zip(state, values, strict=True)), *parted(rebuilt(takes, every)))
        arrangement, results = arrange(result)
        arrangements.append(arrangement)
        return tuple(results)

    arguments = ([value.detach() for value in state.values()], [leaves[index] for index in positions])
    module = make_fx(run, pre_dispatch=True)(*arguments)
    traced = _from_program(_export(module, arguments), flatten(arguments), arrangements[-1])
    for key, value in saved.items():  # tracing on real tensors ran the model once
        model.get_buffer(key).copy_(value)
    parameters = dict(model.named_parameters())
    sources = [("parameter" if key in parameters else "buffer", key) for key in state]
    sources += [("input", str(index)) for index in positions]
    names = [name for name, (role, _) in traced.placeholders.items() if role in ("input", "literal")]
    own = {  # of the trace: plain attributes of the model, which its state has not
        name: ("constant", source)
        for name, (role, source) in traced.placeholders.items()
        if role in ("buffer", "parameter")
    }
    roles = {**traced.placeholders, **own, **dict(zip(names, sources, strict=True))}
    outputs = [_name_mutation(role, source, roles) for role, source in traced.outputs]
    constants = {**traced.constants, **dict(module.named_buffers()), **dict(module.named_parameters())}
    return Traced(traced.graph, roles, outputs, constants, traced.arrangement)


def _name_mutation(role: str, source: str, roles: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    owner, key = roles.get(source, ("", ""))
    if role == "mutation":  # of one of the trace's own
        return UNSEEN, source
    return ("mutation", key) if owner in ("parameter", "buffer") else (role, source)


def _from_program(program: ExportedProgram, leaves: Sequence[Any], arrangement: Arrangement) -> Traced:
    roles: dict[str, tuple[str, str]] = {}
    position = 0
    for item in program.graph_signature.input_specs:
        name, source = item.arg.name, item.target or ""
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
