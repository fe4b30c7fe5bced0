import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Dynamic time warping of pairs of sequences, by anti-diagonals."""
    def __init__(self):
        super().__init__()

    def forward(self, x, y):
        B, n = x.shape
        inf = float("inf")
        a = torch.full((B, n + 1), inf)
        b = torch.full((B, n + 1), inf)
        a[:, 0] = 0
        for d in range(2, 2 * n + 1):
            lo, hi = max(1, d - n), min(n, d - 1)
            cost = (x[:, lo - 1:hi] - y.flip(1)[:, n - d + lo:n - d + hi + 1]).abs()
            c = torch.full((B, n + 1), inf)
            c[:, lo:hi + 1] = cost + torch.minimum(torch.minimum(b[:, lo - 1:hi], b[:, lo:hi + 1]), a[:, lo - 1:hi])
            a, b = b, c
        return b[:, n]

def get_inputs():
    return [torch.randn(8, 64), torch.randn(8, 64)]

def get_init_inputs():
    return []
