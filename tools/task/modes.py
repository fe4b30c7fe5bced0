"""Finds out if a model computes something else in the other of its two modes, train() and eval(). Imports torch."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn

from foundry.tools.task import bundle, loading
from foundry.tools.task.form.values import same_numbers

# Effect of the other mode on the same inputs, parameters and seed: the same answer; another one; another one that
# random streams decide, as in dropout; a failure, as in batch norm on one row.
OtherAnswer = Literal["same", "other", "random", "fails"]
_SEEDS = (0, 1)


@torch.no_grad()
def other_answer(model: nn.Module, inputs: Sequence[Any]) -> OtherAnswer:
    """The effect of the model's other mode on outputs and buffers; modes and buffers are restored.

    Calls the model up to three times, and never if none of its code reads the mode. It must not fail in its own
    mode.
    """
    if not any(map(_reads_mode, model.modules())):
        return "same"
    usual = _run(model, inputs, _SEEDS[0])
    with _turned(model):
        try:
            first = _run(model, inputs, _SEEDS[0])
            if _same(usual, first):
                return "same"
            del usual  # it may be large
            return "other" if _same(first, _run(model, inputs, _SEEDS[1])) else "random"
        except torch.OutOfMemoryError:
            raise
        except Exception:  # raised by the task's code
            return "fails"


def _reads_mode(module: nn.Module) -> bool:
    """True if a method of the module's class mentions `training`."""
    own = type(module).__mro__[: type(module).__mro__.index(nn.Module)]
    functions = (found for kind in own for found in vars(kind).values() if isinstance(found, types.FunctionType))
    return any("training" in function.__code__.co_names for function in functions)


def _run(model: nn.Module, inputs: Sequence[Any], seed: int) -> list[torch.Tensor]:
    """Outputs of a call, then the buffers after it.

    Floating buffers are changed before the call: an average of weights equals the weights at first, which would hide
    its use.
    """
    with kept_buffers(model):
        stream = torch.Generator().manual_seed(_SEEDS[0])
        for buffer in model.buffers():
            if buffer.is_floating_point() and buffer.element_size() > 1:
                shares = torch.rand(buffer.shape, generator=stream).to(buffer)
                buffer.mul_(1.0 + 0.25 * shares).add_(0.05 * shares)
        loading.seed_everything(seed)
        result = loading.call(model, bundle.map_tensors(list(inputs), torch.clone))
        outputs = [item for item in loading.flatten(result) if isinstance(item, torch.Tensor)]
        return [*outputs, *(buffer.clone() for buffer in model.buffers())]


@contextmanager
def _turned(model: nn.Module) -> Iterator[None]:
    """Switches the model to its other mode for the `with` body."""
    modes = {module: module.training for module in model.modules()}
    model.train(not model.training)
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Restores the model's buffers after the `with` body: forward may write to them or replace them."""
    held = [(module, dict(module._buffers)) for module in model.modules()]
    values = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for module, buffers in held:
            module._buffers.update(buffers)
        for buffer, value in values:
            buffer.copy_(value)


def _same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """True for equally many tensors with the same numbers."""
    return len(one) == len(other) and all(map(same_numbers, one, other))
