import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.nn.functional.mish(x)


def get_inputs():
    return [torch.randn(1024, 2048)]


def get_init_inputs():
    return []
