import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, lo, hi):
        super().__init__()
        self.lo, self.hi = lo, hi

    def forward(self, x):
        return F.hardtanh(x, self.lo, self.hi)


def get_inputs():
    return [torch.randn(1024, 1024) * 2]


def get_init_inputs():
    return [-1.0, 1.0]
