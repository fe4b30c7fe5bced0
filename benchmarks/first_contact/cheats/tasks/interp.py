import torch
import torch.nn as nn

N = 100000
K = 1025


class Model(nn.Module):
    """Piecewise linear interpolation at x of the curve with knots (xp, fp), xp ascending."""

    def __init__(self):
        super().__init__()

    def forward(self, x, xp, fp):
        i = torch.searchsorted(xp, x).clamp(1, xp.numel() - 1)
        x0, x1 = xp[i - 1], xp[i]
        f0, f1 = fp[i - 1], fp[i]
        return f0 + (f1 - f0) * ((x - x0) / (x1 - x0)).clamp(0, 1)


def get_inputs():
    xp = (torch.arange(K) + 0.8 * torch.rand(K)) / K
    return [torch.rand(N), xp, torch.randn(K)]


def get_init_inputs():
    return []
