import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, size=5):
        super().__init__()
        self.lrn = nn.LocalResponseNorm(size, alpha=0.01, beta=0.75, k=1.0)

    def forward(self, x):
        return self.lrn(x)


def get_inputs():
    return [torch.randn(8, 32, 32, 32)]


def get_init_inputs():
    return [5]
