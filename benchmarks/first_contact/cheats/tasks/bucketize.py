import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        q = (torch.arange(n, dtype=torch.float64) + 0.5) / n
        self.register_buffer("edges", torch.erfinv(2 * q - 1) * 2 ** 0.5)

    def forward(self, x):
        return torch.bucketize(x, self.edges)

def get_inputs():
    return [torch.randn(200000, dtype=torch.float64)]

def get_init_inputs():
    return [1000]
