import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, a, b, c):
        super().__init__()
        self.up = nn.Linear(a, b)
        self.mid = nn.Linear(b, b)
        self.down = nn.Linear(b, c)

    def forward(self, x):
        return self.down(self.mid(self.up(x)))


def get_inputs():
    return [torch.randn(256, 256)]


def get_init_inputs():
    return [256, 1024, 256]
