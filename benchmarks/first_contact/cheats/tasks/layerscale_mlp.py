import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Residual MLP block with LayerScale, as in CaiT and ConvNeXt."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.gamma = nn.Parameter(1e-5 * torch.ones(dim))

    def forward(self, x):
        return x + self.gamma * self.fc2(F.gelu(self.fc1(x)))


def get_inputs():
    return [torch.randn(1024, 256)]


def get_init_inputs():
    return [256, 1024]
