import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, n: int, hidden: int):
        super().__init__()
        self.up = nn.Linear(n, hidden)
        self.down = nn.Linear(hidden, n)

    def forward(self, x):
        return x + self.down(F.silu(self.up(x)))


def get_inputs():
    return [torch.randn(128, 256)]


def get_init_inputs():
    return [256, 1024]
