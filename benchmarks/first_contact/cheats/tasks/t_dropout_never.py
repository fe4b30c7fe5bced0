import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.drop = nn.Dropout(p)
        self.gamma = nn.Parameter(torch.rand(1024))
        self.eval()

    def forward(self, x, res):
        return res + self.gamma * self.drop(F.silu(x))


def get_inputs():
    return [torch.randn(256, 1024), torch.randn(256, 1024)]


def get_init_inputs():
    return [0.1]
