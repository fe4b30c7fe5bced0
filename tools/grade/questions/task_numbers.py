"""Inputs that hold the task's own numbers: constants of its text, elements of its tables and of other inputs.

If a model compares (a threshold, an edge of a bin, a padding value), a kernel that compares differently is wrong
only at equality, which random inputs never meet. Runs in the judge (imports torch).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from foundry.knowledge.syntax import parse
from foundry.tools.grade.questions.patterns import SPIKE_HIGH, Structure, is_finite, keep_layout, size_of, whole
from foundry.tools.task import bundle

SMALL = 4096  # elements of a tensor that may be a table of edges
EACH = 64  # most numbers from each source
ONE_IN = 8  # elements for each changed one, at least


def literals(source: str) -> list[float]:
    """The constants in a task's text, each with both signs; truth values excluded."""
    found: dict[float, None] = {}
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            found |= {float(node.value): None, -float(node.value): None}
    return list(found)[: 2 * EACH]


def with_task_numbers(
    values: Sequence[Any],
    constants: Sequence[float],
    tables: Iterable[torch.Tensor],
    structures: Sequence[Structure],
    generator: torch.Generator,
) -> list[Any]:
    """The values of `get_inputs` with the task's numbers in a few random elements of each floating tensor.

    The numbers are the constants and the elements of small `tables` and of the other tensors. Left out are numbers
    that the tensor's dtype rounds, because equality then depends on the precision, and those over 32 times its root
    mean square.
    """
    small = [item for item in tables if _may_be_table(item)]
    small += [item for item in bundle.tensors_in(list(values)) if _may_be_table(item)]

    def change(tensor: torch.Tensor, structure: Structure | None = None) -> torch.Tensor:
        """A floating tensor with the task's numbers at random places, one in ONE_IN elements at most; others
        unchanged."""
        if not tensor.is_floating_point() or not tensor.numel() or not is_finite(tensor):
            return tensor
        numbers = _numbers_for(tensor, constants, [item for item in small if item is not tensor], generator)
        numbers = numbers[torch.randperm(len(numbers), generator=generator, device=generator.device)]
        numbers = numbers[: tensor.numel() // ONE_IN]
        changed = tensor.clone(memory_format=torch.contiguous_format)
        changed.view(-1)[whole(0, tensor.numel(), numbers.shape, generator)] = numbers
        return keep_layout(tensor, changed if structure is None else structure.impose_on(changed))

    return [
        change(value, structure) if isinstance(value, torch.Tensor) else bundle.map_tensors(value, change)
        for value, structure in zip(values, structures, strict=True)
    ]


def _may_be_table(tensor: torch.Tensor) -> bool:
    """True for a floating tensor with at least one and at most SMALL elements."""
    return tensor.is_floating_point() and 0 < tensor.numel() <= SMALL


def _numbers_for(
    tensor: torch.Tensor, constants: Sequence[float], others: Sequence[torch.Tensor], generator: torch.Generator
) -> torch.Tensor:
    """The task's constants and elements drawn from its other tensors, without repetitions, on the tensor's device.

    Only numbers that its dtype holds exactly and that are not much larger than its elements.
    """
    drawn = [torch.tensor(list(constants), dtype=torch.float64, device=tensor.device)]
    for other in others:
        flat = other.detach().reshape(-1).to(tensor.device, torch.float64)
        drawn.append(flat[whole(0, len(flat), (min(EACH, len(flat)),), generator)])
    numbers: torch.Tensor = torch.unique(torch.cat(drawn))
    held = numbers.to(tensor.dtype)
    is_usual = numbers.abs() <= SPIKE_HIGH * size_of(tensor)  # excludes infinity and NaN too
    return held[(held.double() == numbers) & is_usual]
