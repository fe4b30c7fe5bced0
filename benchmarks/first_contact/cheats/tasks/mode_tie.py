import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Most frequent value of every row."""
    def forward(self, x):
        return torch.mode(x, dim=1).values

def get_inputs():
    return [torch.randn(8, 8192).mul(2).round().long()]
def get_init_inputs():
    return []
