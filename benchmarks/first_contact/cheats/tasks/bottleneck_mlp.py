import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.up = nn.Linear(d, h)
        self.down = nn.Linear(h, d)

    def forward(self, x):
        return x + self.down(F.hardswish(self.up(x)))


def get_inputs():
    return [torch.randn(128, 384)]


def get_init_inputs():
    return [384, 512]
