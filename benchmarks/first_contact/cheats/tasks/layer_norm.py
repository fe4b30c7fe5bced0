import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.ln = nn.LayerNorm(n)

    def forward(self, x):
        return self.ln(x)


def get_inputs():
    return [torch.randn(32, 64, 512)]


def get_init_inputs():
    return [512]
