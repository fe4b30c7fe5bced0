import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Circular autocorrelation of every row, at all lags."""
    def __init__(self):
        super().__init__()

    def forward(self, x):
        rows, n = x.shape
        twice = torch.cat([x, x[:, :-1]], dim=1)
        return F.conv1d(twice[None], x[:, None], groups=rows)[0]

def get_inputs():
    return [torch.randn(32, 1024)]

def get_init_inputs():
    return []
