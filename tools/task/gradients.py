"""Gradients of a model's outputs: PyTorch's, and those of a model with a backward of its own. Imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction

from foundry.tools.task import bundle, loading


def gradients_of(
    model: nn.Module, arguments: Sequence[Any], learned: Sequence[torch.Tensor], *, only_own: bool = True
) -> list[torch.Tensor] | None:
    """Gradients of a weighted sum of the outputs by each floating input, then by each of the `learned` parameters.

    Zeros if there is no dependence. None if the outputs have no gradient. With `only_own` also None if no
    autograd.Function written in Python leads to an output: PyTorch's own differentiation is no claim of the model's.
    """
    with torch.enable_grad():
        given = bundle.map_tensors(list(arguments), _leaf)
        outputs = [item for item in loading.flatten(loading.call(model, given)) if isinstance(item, torch.Tensor)]
        outputs = [item for item in outputs if item.requires_grad]
        if not outputs or (only_own and not _has_own(item.grad_fn for item in outputs)):
            return None
        by = [*(item for item in bundle.tensors_in(given) if item.requires_grad), *learned]
        total = torch.stack([(item * _weights(item)).sum().double() for item in outputs]).sum()
        wanted = [item for item in by if item.requires_grad]
        found = iter(torch.autograd.grad(total, wanted, allow_unused=True))
    steps = [next(found) if item.requires_grad else None for item in by]
    return [
        torch.zeros_like(item).detach() if step is None else step.contiguous()
        for item, step in zip(by, steps, strict=True)
    ]


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor; of a floating one, a copy that requires a gradient."""
    copy = tensor.detach().clone()
    return copy.requires_grad_() if copy.is_floating_point() else copy


def _weights(output: torch.Tensor) -> torch.Tensor:
    """A different weight for each element, the same in every process."""
    count = torch.arange(output.numel(), dtype=torch.float64, device=output.device)
    return (1.0 + 0.5 * torch.cos(count)).to(output.dtype).reshape(output.shape)


def _has_own(nodes: Iterable[Any]) -> bool:
    """True if a torch.autograd.Function written in Python is among the nodes that lead to these."""
    seen = set[Any]()
    left = [node for node in nodes if node is not None]
    while left:
        node = left.pop()
        if isinstance(node, BackwardCFunction):
            return True
        if node not in seen:
            seen.add(node)
            left += [before for before, _ in node.next_functions if before is not None]
    return False
