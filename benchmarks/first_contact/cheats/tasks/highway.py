import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.h = nn.Linear(d, d)
        self.t = nn.Linear(d, d)

    def forward(self, x):
        g = torch.sigmoid(self.t(x))
        return g * F.relu(self.h(x)) + (1 - g) * x


def get_inputs():
    return [torch.randn(64, 256)]


def get_init_inputs():
    return [256]
