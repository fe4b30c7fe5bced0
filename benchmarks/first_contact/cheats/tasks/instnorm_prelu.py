import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = nn.InstanceNorm2d(c, affine=True)
        self.act = nn.PReLU(c)

    def forward(self, x):
        return self.act(self.norm(x))


def get_inputs():
    return [torch.randn(8, 32, 32, 32)]


def get_init_inputs():
    return [32]
