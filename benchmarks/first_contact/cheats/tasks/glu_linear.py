import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.proj = nn.Linear(d, 2 * h)

    def forward(self, x):
        return F.glu(self.proj(x), dim=-1)


def get_inputs():
    return [torch.randn(128, 256)]


def get_init_inputs():
    return [256, 512]
