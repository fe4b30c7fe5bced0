import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x * 1.5, dim=-1)


def get_inputs():
    return [torch.randn(768, 1024)]


def get_init_inputs():
    return []
