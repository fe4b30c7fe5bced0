import torch
import torch.nn as nn


class Model(nn.Module):
    """Biased, soft-capped scores in half precision, scaled per row."""

    def __init__(self, width, cap):
        super().__init__()
        self.cap = cap
        self.bias = nn.Parameter((torch.randn(width) * 0.1).half())

    def forward(self, x, scale):
        return torch.tanh((x + self.bias) / self.cap) * self.cap * scale[:, None]


def get_inputs():
    return [(torch.randn(768, 1024) * 10).half(), torch.rand(768).half()]


def get_init_inputs():
    return [1024, 15.0]
