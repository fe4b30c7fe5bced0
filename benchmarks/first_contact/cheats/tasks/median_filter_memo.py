import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        p = F.pad(x, (1, 1, 1, 1), mode="reflect")
        w = p.unfold(2, 3, 1).unfold(3, 3, 1).reshape(*x.shape, 9)
        return w.median(-1).values

def get_inputs():
    return [torch.randn(1, 2, 48, 48)]


def get_init_inputs():
    return []
