"""Captures a module and checks its plans against it with the interpreter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tests.knowledge.compiler.interpret import run
from torch import nn

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.ir.kernels import Plan, TorchCall
from foundry.knowledge.compiler.plan import plan
from foundry.knowledge.opgraph import WRITTEN, OpGraph, written_input
from foundry.tools.task.capture import capture
from foundry.tools.task.loading import flatten


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def as_module(model: nn.Module | Callable[..., Any]) -> nn.Module:
    return model if isinstance(model, nn.Module) else Function(model)


def check(
    model: nn.Module | Callable[..., Any],
    *inputs: Any,
    recipe: Recipe | None = None,
    steps: int | None = None,
    calls: Sequence[str] = (),
    tolerance: float = 1e-5,
) -> Plan:
    """Lowers the model and compares the plan's results and state with PyTorch's. `steps`: how many are expected."""
    module = as_module(model)
    graph = capture(module, inputs)
    planned = plan(graph, recipe or Recipe("cpu"))
    compare(module, planned, inputs, tolerance)
    called = [step.target.split(".")[1] for step in planned.steps if isinstance(step, TorchCall)]
    assert called == list(calls), called
    if steps is not None:
        assert len(planned.steps) == steps, [getattr(step, "name", "") for step in planned.steps]
    return planned


def compare(module: nn.Module, planned: Plan, inputs: Sequence[Any], tolerance: float = 1e-5) -> None:
    state = {
        name: item.detach().clone()
        for name, item in {**dict(module.named_parameters()), **dict(module.named_buffers())}.items()
    }
    found, written = run(planned, [*inputs], state)
    given = [item.clone() if isinstance(item, torch.Tensor) else item for item in inputs]
    with torch.no_grad():
        wanted = flatten(module(*given))
    new = {key: have for key in [*written] if written_input(key) for have in [written.pop(key)]}
    for place, (old, item) in enumerate(zip(inputs, given, strict=True)):
        if isinstance(item, torch.Tensor):
            same(new.get(f"{WRITTEN}{place}", old), item, tolerance)
    assert len(found) == len(wanted)
    for have, want in zip(found, wanted, strict=True):
        same(have, want, tolerance)
    after = dict(module.named_buffers())
    for key, have in written.items():
        same(have, after[key], tolerance)
    for key, value in after.items():
        if key not in written:
            assert torch.equal(value, state[key]), f"{key} was not written back"


def same(have: Any, want: Any, tolerance: float) -> None:
    if not isinstance(want, torch.Tensor):
        assert have == want
        return
    assert have.dtype == want.dtype and have.shape == want.shape
    torch.testing.assert_close(have, want, rtol=tolerance, atol=tolerance, equal_nan=True)


def graph_of(model: nn.Module | Callable[..., Any], *inputs: Any) -> OpGraph:
    return capture(as_module(model), inputs)


def materialising(planned: Plan, recipe: Recipe) -> list[Recipe]:
    """One recipe for each value that could be cut."""
    return [dataclasses.replace(recipe, materialise=(name,)) for name in planned.fused]
