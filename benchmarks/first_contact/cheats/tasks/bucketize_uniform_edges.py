import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.register_buffer("edges", torch.linspace(-4.0, 4.0, bins + 1))

    def forward(self, x):
        return torch.bucketize(x, self.edges)

def get_inputs():
    return [torch.randn(512, 2048)]

def get_init_inputs():
    return [256]
