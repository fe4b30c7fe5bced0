import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def forward(self, x):
        n, c, l = x.shape
        return x.view(n, self.groups, c // self.groups, l).transpose(1, 3).contiguous()


def get_inputs():
    return [torch.randn(8, 128, 1024)]


def get_init_inputs():
    return [8]
