"""Lowers recurrent layers: one matrix product computes the input's contribution to all steps' gates, then a
RecurrentKernel runs the steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foundry.knowledge.compiler.ir.kernels import (
    GATES,
    Const,
    Load,
    Named,
    RecurrentCell,
    RecurrentKernel,
    Store,
    View,
)
from foundry.knowledge.compiler.rules.builder import Builder, Tensor, Unsupported, cast, compute_dtype, rule
from foundry.knowledge.compiler.rules.contract import linear
from foundry.knowledge.compiler.rules.pointwise import take
from foundry.knowledge.compiler.rules.reduce import is_read
from foundry.knowledge.opgraph import Argument, Op, TensorSpec, contiguous_strides

# Most bytes of weights of layers that run in one kernel, each a step behind the one below: what the SMs can hold on
# chip.
_MOST_CHAINED_BYTES = 14 << 20


@dataclass(frozen=True)
class _Weights:
    """The parameters of one layer in one direction: of its input (`below`) and of its own state (`own`)."""

    below: Tensor
    own: Tensor
    below_bias: Tensor | None
    bias: Tensor | None


@dataclass(frozen=True)
class _Layers:
    """The arguments of a call of lstm, gru, rnn_tanh or rnn_relu."""

    source: Tensor  # (steps, batch, inputs)
    h: Tensor
    c: Tensor | None
    weights: tuple[tuple[_Weights, ...], ...]  # [layer][direction]
    batch_first: bool

    @property
    def hidden(self) -> int:
        """The number of hidden units."""
        return self.weights[0][0].own.shape[1]


@rule(*GATES)
def _recurrent(builder: Builder, op: Op) -> None:
    """Lowers lstm, gru, rnn_tanh and rnn_relu: one kernel for each chain of layers, with last states if they are
    read."""
    called = _read(builder, op)
    steps, batch, _ = called.source.shape
    directions = len(called.weights[0])
    hidden = called.hidden
    shape = (directions, steps, batch, hidden)
    states = [
        _state_buffer(builder, op, output) if is_read(builder, op, output) else ""
        for output in range(1, len(op.outputs))
    ]
    source = called.source
    first = 0
    for count in _chains(builder, op, called):
        is_last = first + count == len(called.weights)
        layers = tuple(
            _cells(builder, op, called, layer, source if layer == first else None)
            for layer in range(first, first + count)
        )
        stores: tuple[Store, ...] = ()
        if not is_last or is_read(builder, op, 0):
            name = op.outputs[0].name if is_last else f"{op.name}_layer{first + count - 1}"
            source = builder.buffer(name, (steps, batch, directions * hidden), op.outputs[0].spec.dtype)
            stores = (_store(source, shape),)
        kernel = RecurrentKernel(
            f"k_{builder.identifier(f'{op.name}_layer{first}')}",
            cell=op.kind,  # type: ignore[arg-type]
            shape=shape,
            layers=layers,
            stores=stores,
            dtype=compute_dtype(called.source.dtype),
            last_h=states[0],
            last_c=states[1] if len(states) > 1 else "",
            first=first * directions,
            ops=(op.name,),
        )
        builder.emit(kernel)
        first += count
    if is_read(builder, op, 0):
        builder.bind(op, builder.permute(source, (1, 0, 2), op) if called.batch_first else source)


def _read(builder: Builder, op: Op) -> _Layers:
    """The call's operands. Raises Unsupported for packed sequences, projected states and dropout."""
    if not op.target.endswith(".input"):
        raise Unsupported(f"{op.target}: sequences of different lengths")
    has_biases, count, dropout, training, both, batch_first = op.args[3:9]
    given = op.args[2]
    assert isinstance(given, list) and isinstance(count, int)
    directions, each = 2 if both else 1, 4 if has_biases else 2
    if len(given) != count * directions * each:
        raise Unsupported(f"{op.target}: projected states")
    if training and dropout:
        raise Unsupported(f"{op.target}: dropout")
    source = builder.tensor(op.args[0])
    source = builder.permute(source, (1, 0, 2), op) if batch_first else source
    if source.numel == 0:
        raise Unsupported(f"{op.target}: nothing to walk")
    found = [builder.tensor(item) for item in given]
    cells = [
        _Weights(*found[at : at + 2], *(found[at + 2 : at + each] or (None, None))) for at in range(0, len(found), each)
    ]
    layers = tuple(tuple(cells[at : at + directions]) for at in range(0, len(cells), directions))
    states: list[Argument] = op.args[1] if isinstance(op.args[1], list) else [op.args[1]]
    h, c = (builder.tensor(states[0]), builder.tensor(states[1]) if op.kind == "lstm" else None)
    return _Layers(source, h, c, layers, bool(batch_first))


def _chains(builder: Builder, op: Op, called: _Layers) -> list[int]:
    """The number of layers that each kernel runs. A GPU can run several at once, each one step behind the one below.

    Two directions prevent that, since each must end before the next layer starts. On a CPU, one product for all
    steps is faster.
    """
    count = len(called.weights)
    if not builder.forms.chains_layers or len(called.weights[0]) > 1:
        return [1] * count
    layer_bytes = 2 * GATES[op.kind] * called.hidden**2 * 4
    most = max(1, _MOST_CHAINED_BYTES // layer_bytes)
    return [min(most, count - first) for first in range(0, count, most)]


def _cells(builder: Builder, op: Op, called: _Layers, layer: int, source: Tensor | None) -> tuple[RecurrentCell, ...]:
    """The cells of a layer, one per direction. With `source`, the product that computes its contribution to the
    gates is emitted first."""
    found = []
    for direction, weights in enumerate(called.weights[layer]):
        row = layer * len(called.weights[layer]) + direction
        cell = RecurrentCell(
            _load(builder, op, weights.own),
            None if weights.bias is None else _load(builder, op, weights.bias),
            _initial(builder, op, called.h, row),
            None if called.c is None else _initial(builder, op, called.c, row),
        )
        if source is not None:
            cell = replace(cell, given=_share(builder, op, f"gates{row}", source, weights))
        else:
            bias = None if weights.below_bias is None else _load(builder, op, weights.below_bias)
            cell = replace(cell, below=_load(builder, op, weights.below), below_bias=bias)
        found.append(cell)
    return tuple(found)


def _load(builder: Builder, op: Op, tensor: Tensor) -> Load:
    """The tensor as one load."""
    return builder.ensure_load(tensor, op)[1]


def _initial(builder: Builder, op: Op, states: Tensor, row: int) -> Load | None:
    """One layer's part of the given initial states; None for zeros."""
    if isinstance(states.expr, Const) and states.expr.value == 0:
        return None
    whole = builder.ensure_load(states, op)[0]
    part = take(builder, op, whole, axis=0, start=row, length=1)
    return _load(builder, op, builder.reshape(part, states.shape[1:], op))


def _share(builder: Builder, op: Op, tag: str, source: Tensor, weights: _Weights) -> Load:
    """Emits the product of all steps of the input with the gates' weights, biases added, and returns its load."""
    shape = (*source.shape[:-1], weights.below.shape[0])
    dtype = op.outputs[0].spec.dtype
    value = replace(op.outputs[0], name=f"{op.name}_{tag}", spec=TensorSpec(shape, contiguous_strides(shape), dtype))
    before = len(builder.steps)
    linear(builder, replace(op, outputs=[value]), source, weights.below, weights.below_bias)
    builder.steps[before:] = [replace(step, ops=(op.name,)) for step in builder.steps[before:]]
    return _load(builder, op, builder.tensors[value.name])


def _state_buffer(builder: Builder, op: Op, output: int) -> str:
    """The name of the buffer for the states after the last step."""
    value = op.outputs[output]
    target = builder.buffer(value.name, value.spec.shape, value.spec.dtype)
    assert isinstance(target.expr, Load)
    builder.tensors[value.name] = target
    return target.expr.buffer


def _store(target: Tensor, shape: tuple[int, int, int, int]) -> Store:
    """The store of a layer's states, with the directions of a step contiguous."""
    directions, _, batch, hidden = shape
    assert isinstance(target.expr, Load)
    view = View(0, (hidden, batch * directions * hidden, directions * hidden, 1))
    return Store(target.expr.buffer, view, cast(Named("acc", compute_dtype(target.dtype)), target.dtype))
