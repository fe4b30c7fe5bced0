import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x, xp, fp):
        i = torch.searchsorted(xp, x.contiguous(), right=True).clamp(1, xp.numel() - 1)
        x0, x1 = xp[i - 1], xp[i]
        y0, y1 = fp.gather(1, i - 1), fp.gather(1, i)
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def get_inputs():
    return [torch.rand(32, 1024), torch.linspace(0, 1, 128), torch.randn(32, 128)]


def get_init_inputs():
    return []
