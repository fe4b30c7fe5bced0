import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x, y):
        B, n, _ = x.shape
        D = torch.cdist(x, y)
        inf = float("inf")
        Ds = torch.full((B, n, 2 * n - 1), inf)
        i = torch.arange(n)
        Ds[:, i[:, None], i[:, None] + i[None]] = D
        p2 = torch.full((B, n), inf)
        p1 = Ds[:, :, 0].clone()
        for k in range(1, 2 * n - 1):
            c = torch.minimum(p1, torch.minimum(F.pad(p1[:, :-1], (1, 0), value=inf), F.pad(p2[:, :-1], (1, 0), value=inf)))
            p2, p1 = p1, c + Ds[:, :, k]
        return p1[:, -1]


def get_inputs():
    return [torch.randn(16, 40, 8), torch.randn(16, 40, 8)]


def get_init_inputs():
    return []
