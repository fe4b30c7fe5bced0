import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Dynamic time warping distance, all antidiagonals at once."""

    def forward(self, a, b):
        rows, n = a.shape
        m = b.shape[1]
        cost = (a[:, :, None] - b[:, None, :]).abs()
        inf = float("inf")
        sk = F.pad(cost, (0, n), value=inf).reshape(rows, n * (m + n))
        sk = sk[:, : n * (m + n - 1)].reshape(rows, n, m + n - 1)
        p2 = torch.full((rows, n), inf, dtype=a.dtype)
        p1 = torch.cat([sk[:, :1, 0], p2[:, 1:]], 1)
        for k in range(1, n + m - 1):
            s1 = F.pad(p1[:, :-1], (1, 0), value=inf)
            s2 = F.pad(p2[:, :-1], (1, 0), value=inf)
            p2, p1 = p1, sk[:, :, k] + torch.minimum(torch.minimum(p1, s1), s2)
        return p1[:, -1]


def get_inputs():
    return [torch.randn(64, 48), torch.randn(64, 60)]


def get_init_inputs():
    return []
