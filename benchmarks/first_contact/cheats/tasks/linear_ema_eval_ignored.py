import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i) * i ** -0.5)
        self.register_buffer("ema", self.weight.detach().clone())

    def forward(self, x):
        w = self.weight if self.training else self.ema
        return F.elu(F.linear(x, w))


def get_inputs():
    return [torch.randn(128, 512)]


def get_init_inputs():
    return [512, 640]
