import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bil = nn.Bilinear(32, 32, 16)

    def forward(self, a, b):
        return torch.tanh(self.bil(a, b))

def get_inputs():
    return [torch.randn(512, 32), torch.randn(512, 32)]


def get_init_inputs():
    return []
