import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """4-bit fake quantisation with a learned scale per column."""
    def __init__(self, columns):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(columns) * 0.5 + 1.0)
    def forward(self, x):
        q = torch.clamp(torch.round(x / self.scale), -8, 7)
        return q * self.scale

def get_inputs():
    return [torch.randn(256, 1024)]
def get_init_inputs():
    return [1024]
