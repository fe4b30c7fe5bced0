import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Dynamic time warping distance, by antidiagonals."""

    def forward(self, x, y):
        n = x.shape[1]
        cost = (x[:, :, None] - y[:, None, :]).abs()
        inf = float("inf")
        before = torch.full((x.shape[0], n + 1), inf, dtype=x.dtype)
        before[:, 0] = 0
        last = torch.full_like(before, inf)
        for s in range(2, 2 * n + 1):
            lo, hi = max(1, s - n), min(n, s - 1)
            i = torch.arange(lo, hi + 1)
            best = torch.minimum(torch.minimum(last[:, lo - 1:hi], last[:, lo:hi + 1]), before[:, lo - 1:hi])
            now = torch.full_like(before, inf)
            now[:, lo:hi + 1] = best + cost[:, i - 1, s - i - 1]
            before, last = last, now
        return last[:, n]


def get_inputs():
    x = torch.randn(16, 128)
    return [x, x + 0.1 * torch.randn(16, 128)]


def get_init_inputs():
    return []
