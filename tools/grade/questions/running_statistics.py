"""What forward updates: running statistics, and how large an error of them is. Runs in the judge (imports torch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from foundry.tools.grade.questions.trial import UpdatedBuffer
from foundry.tools.protocol import comparison
from foundry.tools.protocol.comparison import Expected
from foundry.tools.task import loading

MEAN, VARIANCE = "running_mean", "running_var"


def updated_buffers(
    model: nn.Module,
    keys: Sequence[str],
    before: Mapping[str, torch.Tensor],
    runs: Sequence[Sequence[torch.Tensor]],
    expect: Callable[[torch.Tensor, torch.Tensor], Expected],
) -> tuple[UpdatedBuffer, ...]:
    """The buffers `keys`, from what runs in float64, in IEEE arithmetic and with TF32 have left of those `before`.

    The error of a mean counts in units of the deviations that it was taken of, where these are larger than the mean:
    of outputs behind a normalisation it is zero but for roundings, and no two orders of summation agree on those.
    """
    exact = dict(zip(keys, runs[0], strict=True))
    deviations = _deviations(model, before, exact)
    found: list[UpdatedBuffer] = []
    for key, truth, *owns in zip(keys, *runs, strict=True):
        expected = expect(truth, owns[0])
        if (deviation := deviations.get(key)) is not None:
            norm = float(torch.linalg.vector_norm(deviation))
            spread = norm / max(1, deviation.numel()) ** 0.5
            expected = replace(expected, norm=max(expected.norm, norm), spread=max(expected.spread, spread))
        ieee, tf32 = (comparison.measure(own, expected) for own in owns)
        found.append(UpdatedBuffer(key, expected, ieee, tf32, loading.spec_of(owns[0].contiguous())))
    return tuple(found)


def _deviations(
    model: nn.Module, before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """By the key of a running mean: the standard deviations in the batch, times the part that the batch has in it."""
    found: dict[str, torch.Tensor] = {}
    for name, layer in model.named_modules():
        mean, variance = (f"{name}.{item}".lstrip(".") for item in (MEAN, VARIANCE))
        momentum = getattr(layer, "momentum", None)
        if momentum and {mean, variance} <= after.keys() and variance in before:
            kept = (1.0 - momentum) * before[variance].to(after[variance])
            found[mean] = momentum * ((after[variance] - kept) / momentum).clamp(min=0.0).sqrt()
    return found
