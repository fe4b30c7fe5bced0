import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """h[t] = a[t] * h[t-1] + b[t]; returns all h and the last one."""

    def __init__(self, width):
        super().__init__()
        self.h0 = nn.Parameter(torch.randn(width) * 0.1)

    def forward(self, a, b):
        h = self.h0.expand(a.shape[0], -1)
        out = []
        for t in range(a.shape[1]):
            h = a[:, t] * h + b[:, t]
            out.append(h)
        return torch.stack(out, 1), h


def get_inputs():
    return [torch.rand(16, 128, 256), torch.randn(16, 128, 256)]


def get_init_inputs():
    return [256]
