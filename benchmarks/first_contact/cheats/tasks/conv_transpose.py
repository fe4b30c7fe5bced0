import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c, o):
        super().__init__()
        self.up = nn.ConvTranspose1d(c, o, 4, stride=2, padding=1)

    def forward(self, x):
        return torch.tanh(self.up(x))


def get_inputs():
    return [torch.randn(8, 32, 256)]


def get_init_inputs():
    return [32, 32]
