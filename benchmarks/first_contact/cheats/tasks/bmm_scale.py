import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, a, b):
        return torch.bmm(a, b) * 0.125


def get_inputs():
    return [torch.randn(16, 128, 96), torch.randn(16, 96, 128)]


def get_init_inputs():
    return []
