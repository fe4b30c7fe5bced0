"""Other parameters than those a model was constructed with: all of them, or few. Imports torch."""

from __future__ import annotations

import torch

FEW_EVERY = 512  # parameters to a changed one: who looks at samples of them hardly meets one


def randomised(state: dict[str, torch.Tensor], chosen: set[str], seed: int) -> dict[str, torch.Tensor]:
    """Every chosen tensor times 1 + 0.5 N(0,1) plus an offset of its own size; constant ones (scales of one,
    biases of zero) become different elements. Running variances stay positive."""
    generator = torch.Generator().manual_seed(seed)
    changed: dict[str, torch.Tensor] = {}
    for key, tensor in state.items():
        if key not in chosen:
            changed[key] = tensor
            continue
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32).to(tensor.device)
        if "var" in key.rsplit(".", 1)[-1]:
            value = tensor.float() * (0.5 + torch.rand(tensor.shape, generator=generator).to(tensor.device))
        elif is_constant(tensor):
            value = tensor.float() + 0.3 * noise
        else:
            value = tensor.float() * (1.0 + 0.5 * noise)
        changed[key] = value.to(tensor.dtype)
    return changed


def few_of(
    changed: torch.Tensor, tensor: torch.Tensor, stream: torch.Generator, most: int | None = None
) -> torch.Tensor:
    """`tensor` with one in FEW_EVERY of its elements, and one at least, or at most `most`, taken from `changed`."""
    count = max(1, tensor.numel() // FEW_EVERY) if most is None else most
    places = torch.randint(0, max(1, tensor.numel()), (count,), generator=stream)
    taken = torch.zeros(tensor.numel(), dtype=torch.bool)
    taken[places[: tensor.numel()]] = True
    return torch.where(taken.reshape(tensor.shape).to(tensor.device), changed, tensor)


def is_constant(tensor: torch.Tensor) -> bool:
    """Whether all elements are equal, and there are some."""
    return bool(tensor.numel()) and bool((tensor == tensor.reshape(-1)[0]).all())
