import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        d = x - x.mean(-1, keepdim=True)
        v = d.pow(2).mean(-1)
        return d.pow(4).mean(-1) / v.pow(2) - 3


def get_inputs():
    return [torch.randn(512, 1024)]
