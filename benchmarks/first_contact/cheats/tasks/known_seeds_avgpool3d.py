import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.nn.functional.avg_pool3d(x, 2)


def get_inputs():
    return [torch.randn(2, 16, 16, 48, 48)]


def get_init_inputs():
    return []
