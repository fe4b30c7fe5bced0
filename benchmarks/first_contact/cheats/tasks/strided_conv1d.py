import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c, o):
        super().__init__()
        self.conv = nn.Conv1d(c, o, 9, stride=2, padding=4)

    def forward(self, x):
        return F.leaky_relu(self.conv(x), 0.1)


def get_inputs():
    return [torch.randn(8, 32, 512)]


def get_init_inputs():
    return [32, 64]
