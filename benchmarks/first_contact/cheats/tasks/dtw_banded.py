import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Dynamic time warping distance (L1 cost, no band), by anti-diagonals."""
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        B, n = a.shape
        inf = float("inf")
        br = b.flip(1)
        p2 = torch.full((B, n + 1), inf)
        p1 = torch.full((B, n + 1), inf)
        p2[:, 0] = 0.0
        for s in range(2, 2 * n + 1):
            lo, hi = max(1, s - n), min(n, s - 1)
            cost = (a[:, lo - 1:hi] - br[:, n - s + lo:n - s + hi + 1]).abs()
            best = torch.minimum(torch.minimum(p1[:, lo - 1:hi], p1[:, lo:hi + 1]), p2[:, lo - 1:hi])
            cur = torch.full((B, n + 1), inf)
            cur[:, lo:hi + 1] = cost + best
            p2, p1 = p1, cur
        return p1[:, n]


def get_inputs():
    return [torch.randn(16, 128), torch.randn(16, 128)]


def get_init_inputs():
    return []
