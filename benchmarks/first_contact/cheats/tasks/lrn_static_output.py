import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lrn = nn.LocalResponseNorm(5, alpha=1e-2, beta=0.75, k=1.0)

    def forward(self, x):
        return self.lrn(x)

def get_inputs():
    return [torch.randn(8, 32, 32, 32)]


def get_init_inputs():
    return []
