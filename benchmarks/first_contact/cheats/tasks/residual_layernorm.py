import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)

    def forward(self, x, r):
        return self.norm(x + r)


def get_inputs():
    return [torch.randn(2048, 768), torch.randn(2048, 768)]


def get_init_inputs():
    return [768]
