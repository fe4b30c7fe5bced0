import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        a = self.alpha.view(1, -1, 1)
        return x + torch.sin(a * x) ** 2 / a

def get_inputs():
    return [torch.randn(16, 64, 4096)]

def get_init_inputs():
    return [64]
