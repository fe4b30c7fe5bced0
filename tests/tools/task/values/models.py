"""Models whose Python reads values, in the forms in which people write them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, INNER, EXPERTS = 16, 24, 5


def route(x: torch.Tensor, kind: str) -> torch.Tensor:
    """Two experts for each row: at random, all rows to the same two, or none to some."""
    rows = x.shape[0]
    if kind == "random":
        return torch.rand(rows, EXPERTS).topk(2, dim=-1).indices
    if kind == "one":
        return torch.tensor([[1, 3]]).expand(rows, 2).contiguous()
    return torch.stack([torch.zeros(rows, dtype=torch.int64), torch.randint(3, EXPERTS, (rows,))], 1)


class ByWhere(nn.Module):
    """Experts found by `torch.where`, with weights of all experts in one tensor each."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * INNER) * 0.3)
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH) * 0.3)

    def forward(self, x: torch.Tensor, picked: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for e in range(self.up.shape[0]):
            row, slot = torch.where(picked == e)
            if row.numel() == 0:
                continue
            gate, value = (x[row] @ self.up[e]).chunk(2, dim=-1)
            out.index_add_(0, row, (F.silu(gate) * value) @ self.down[e] * weight[row, slot, None])
        return out


class ByHits(nn.Module):
    """Experts that have rows, walked by iterating over `nonzero`; weights transposed, places from a one-hot table."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, 2 * INNER, WIDTH) * 0.3)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) * 0.3)

    def forward(self, x: torch.Tensor, picked: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        with torch.no_grad():
            chosen = F.one_hot(picked, num_classes=EXPERTS + 1).permute(2, 1, 0)
            hit = torch.greater(chosen.sum(dim=(-1, -2)), 0).nonzero()
        for item in hit:
            expert = item[0]
            if expert == EXPERTS:
                continue
            slot, row = torch.where(chosen[expert])
            gate, value = F.linear(x[row], self.up[expert]).chunk(2, dim=-1)
            found = F.linear(F.silu(gate) * value, self.down[expert]) * weight[row, slot, None]
            out.index_add_(0, row, found.to(out.dtype))
        return out


class ByModules(nn.Module):
    """Experts that are modules with biases; each row has one expert, and the rows are written back."""

    def __init__(self) -> None:
        super().__init__()
        made = (nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH)) for _ in range(EXPERTS))
        self.experts = nn.ModuleList(made)

    def forward(self, x: torch.Tensor, picked: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            mask = picked[:, 0] == index
            if mask.any():
                out[mask] = expert(x[mask]) * weight[mask, :1]
        return out


class ByAny(nn.Module):
    """Experts whose rows are found by `any`, so that a row is in several masks."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: torch.Tensor, picked: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = (picked == index).any(dim=-1).nonzero().squeeze(-1)
            share = (weight * (picked == index)).sum(-1, keepdim=True)
            out[rows] += torch.tanh(expert(x[rows])) * share[rows]
        return out


class Offsets(nn.Module):
    """Segments between offsets that are read, each with a matrix of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, WIDTH, WIDTH) * 0.3)

    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for k in range(3):
            start, end = offsets[k].item(), offsets[k + 1].item()
            out[start:end] = x[start:end] @ self.weight[k]
        return out


class Lengths(nn.Module):
    """Sequences of different lengths: a softmax and a mean over the rows that exist."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        found = []
        for b in range(x.shape[0]):
            n = int(lengths[b].item())
            part = x[b, :n]
            share = torch.softmax(part[:, 0], dim=0)
            found.append((share[:, None] * part).sum(0) + part.mean(0))
        return torch.stack(found)


class Loss(nn.Module):
    """Sums, means and maxima over the elements that a mask keeps."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = x[labels >= 0]
        positive = x[x > 0]
        return kept.mean(), kept.amax(0), positive.sum() / positive.numel(), (x[labels >= 0] * 2).sum(1).max()


def routed(kind: str, rows: int = 12) -> list[Any]:
    """Inputs of the expert models."""
    x = torch.randn(rows, WIDTH)
    return [x, route(x, kind), torch.rand(rows, 2)]
