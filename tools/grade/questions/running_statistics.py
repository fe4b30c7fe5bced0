"""Buffers that forward updates (running statistics), and the size of their errors. Runs in the judge (imports
torch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from foundry.tools.grade.questions.trial import UpdatedBuffer
from foundry.tools.protocol import comparison
from foundry.tools.protocol.comparison import Expected
from foundry.tools.task import loading

MEAN, VARIANCE, CALLS = "running_mean", "running_var", "num_batches_tracked"


def updated_buffers(
    model: nn.Module,
    keys: Sequence[str],
    before: Mapping[str, torch.Tensor],
    runs: Sequence[Sequence[torch.Tensor]],
    expect: Callable[[torch.Tensor, torch.Tensor], Expected],
) -> tuple[UpdatedBuffer, ...]:
    """The buffers `keys`, as runs in float64, in IEEE arithmetic and with TF32 have left them, starting from `before`.

    The error of a mean counts in units of the deviations that it was taken of, if these are larger than the mean.
    Behind a normalisation the mean is zero except for roundings, and no two orders of summation agree on those.
    """
    exact = dict(zip(keys, runs[0], strict=True))
    computed = _computed(model, before, exact)
    found: list[UpdatedBuffer] = []
    for key, truth, *owns in zip(keys, *runs, strict=True):
        expected = expect(truth, owns[0])
        share = 1.0
        if (part := computed.get(key)) is not None:
            norm = float(torch.linalg.vector_norm(part))
            if key.rpartition(".")[2] == MEAN:
                spread = norm / max(1, part.numel()) ** 0.5
                expected = replace(expected, norm=max(expected.norm, norm), spread=max(expected.spread, spread))
            share = min(1.0, norm / max(expected.norm, comparison.TINY))
        ieee, tf32 = (comparison.measure(own, expected) for own in owns)
        found.append(UpdatedBuffer(key, expected, ieee, tf32, spec=loading.spec_of(owns[0].contiguous()), share=share))
    return tuple(found)


def _computed(
    model: nn.Module, before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The part of each running statistic that comes from the present batch, by key.

    For a variance it is the batch's variance times the momentum. For a mean it is the batch's root mean square times
    the momentum, because the batch's own mean is part of that.
    """
    found: dict[str, torch.Tensor] = {}
    for name, layer in model.named_modules():
        mean, variance, calls = (f"{name}.{item}".lstrip(".") for item in (MEAN, VARIANCE, CALLS))
        momentum = getattr(layer, "momentum", 0.0)
        if momentum is None and calls in before:  # the statistics are averages over all calls then
            momentum = 1.0 / (1 + int(before[calls]))
        if momentum and {mean, variance} <= after.keys() <= before.keys():
            found[variance], own_mean = (
                after[key].double() - (1.0 - momentum) * before[key].double() for key in (variance, mean)
            )
            found[mean] = (momentum * found[variance].clamp(min=0.0) + own_mean.square()).sqrt()
    return found
