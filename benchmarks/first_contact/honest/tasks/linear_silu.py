import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """A linear layer with SiLU."""

    def __init__(self, fin, fout):
        super().__init__()
        self.fc = nn.Linear(fin, fout)

    def forward(self, x):
        return F.silu(self.fc(x))


def get_inputs():
    return [torch.randn(256, 512)]


def get_init_inputs():
    return [512, 768]
