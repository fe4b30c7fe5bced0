"""Recurrent layers with known truths: every cell, shapes that are multiples of nothing, states of any size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from tests.knowledge.compiler import interpret
from tests.knowledge.compiler.cuda.cases import Case

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.ir.kernels import (
    GATES,
    Apply,
    Expr,
    Load,
    Named,
    RecurrentCell,
    RecurrentKernel,
    Store,
    View,
)
from foundry.knowledge.opgraph import DType


def recurrence(
    cell: str,
    steps: int,
    batch: int,
    hidden: int,
    layers: int = 1,
    directions: int = 1,
    *,
    dtype: DType = "float32",
    bias: bool = True,
    states: float = 1.0,
    tolerance: float = 2e-6,
    **choices: Choice,
) -> Case:
    """`states`: the size of the given ones, of which there are none for 0."""
    inputs: dict[str, torch.Tensor] = {}
    width = GATES[cell] * hidden

    def given(name: str, size: float, *shape: int) -> Load:
        inputs[name] = (size * torch.empty(shape).uniform_(-1, 1)).to(getattr(torch, dtype))
        return Load(name, View(0, inputs[name].stride()), dtype)

    def make(layer: int, row: int) -> RecurrentCell:
        root = 1 / math.sqrt(hidden)
        first = [given(f"{name}{row}", states, batch, hidden) if states else None for name in ("h", "c")]
        made = RecurrentCell(
            given(f"w{row}", root, width, hidden),
            given(f"b{row}", root, width) if bias else None,
            first[0],
            first[1] if cell == "lstm" else None,
        )
        if layer == 0:
            return replace(made, given=given(f"x{row}", 2.0, steps, batch, width))
        below_bias = given(f"d{row}", root, width) if bias else None
        return replace(made, below=given(f"u{row}", root, width, hidden), below_bias=below_bias)

    cells = tuple(tuple(make(layer, layer * directions + d) for d in range(directions)) for layer in range(layers))
    view = View(0, (hidden, batch * directions * hidden, directions * hidden, 1))
    last_c = "last_c" if cell == "lstm" else ""
    shape = (directions, steps, batch, hidden)
    store = Store("y", view, _acc(dtype))
    kernel = RecurrentKernel("walk", cell, shape, cells, (store,), "float32", "last_h", last_c, 0, ("layers",))  # type: ignore[arg-type]
    if cell != "lstm":
        inputs = {name: tensor for name, tensor in inputs.items() if not name.startswith("c")}
    outputs = {"y": torch.empty(steps, batch, directions * hidden)}
    outputs |= {name: torch.empty(layers * directions, batch, hidden) for name in ("last_h", last_c) if name}
    return _with_truth(Case(kernel, inputs, outputs, dict(choices), tolerance), kernel, dtype)


def _acc(dtype: DType) -> Expr:
    acc = Named("acc", "float32")
    return acc if dtype == "float32" else Apply("cast", (acc,), dtype)


def _with_truth(case: Case, kernel: RecurrentKernel, dtype: DType) -> Case:
    """The case with what plain tensors of float64 give."""
    wide = {name: tensor.double() for name, tensor in case.outputs.items()}
    (store,) = kernel.stores
    exact = replace(kernel, dtype="float64", stores=(replace(store, value=Named("acc", "float64")),))
    found, _ = interpret.run(replace(case, kernel=exact, outputs=wide).plan(), list(case.inputs.values()), {})
    return replace(case, outputs={key: t.to(getattr(torch, dtype)) for key, t in zip(wide, found, strict=True)})


CASES: dict[str, Callable[[], Case]] = {
    "lstm": lambda: recurrence("lstm", 5, 3, 13),
    "lstm_of_three_layers": lambda: recurrence("lstm", 6, 5, 20, 3),
    "lstm_both_ways": lambda: recurrence("lstm", 4, 2, 9, 1, 2),
    "lstm_without_states": lambda: recurrence("lstm", 3, 2, 12, 2, bias=False, states=0),
    "lstm_of_many_sequences": lambda: recurrence("lstm", 3, 19, 7, tile=4),
    "lstm_in_shared": lambda: recurrence("lstm", 4, 3, 17, 2, weights="shared"),
    "lstm_in_memory": lambda: recurrence("lstm", 4, 3, 17, 2, weights="memory"),
    "lstm_in_one_block": lambda: recurrence("lstm", 4, 3, 8, units=8),
    "gru_apart_in_one_block": lambda: recurrence("gru", 4, 5, 8, 3, tile=2, units=8),
    "one_step": lambda: recurrence("lstm", 1, 1, 5),
    "gru": lambda: recurrence("gru", 5, 3, 13),
    "gru_of_three_layers": lambda: recurrence("gru", 6, 2, 11, 3),
    "gru_both_ways": lambda: recurrence("gru", 4, 3, 10, 1, 2),
    "gru_of_large_states": lambda: recurrence("gru", 5, 2, 13, 2, states=1e18),
    "gru_in_one_block_of_two": lambda: recurrence("gru", 3, 3, 6, 2, units=6),
    "rnn_tanh": lambda: recurrence("rnn_tanh", 5, 3, 13, 2),
    "rnn_relu": lambda: recurrence("rnn_relu", 7, 2, 33, 1, 2, states=1e30),
    "many_threads": lambda: recurrence("lstm", 3, 4, 30, threads=512),
    "bfloat16": lambda: recurrence("lstm", 5, 3, 13, 2, dtype="bfloat16", tolerance=4e-3),
    "float16": lambda: recurrence("gru", 5, 3, 14, 1, 2, dtype="float16", tolerance=5e-4),
}
