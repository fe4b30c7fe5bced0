import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Layer norm in bfloat16."""

    def __init__(self, width):
        super().__init__()
        self.ln = nn.LayerNorm(width, dtype=torch.bfloat16)

    def forward(self, x):
        return self.ln(x)


def get_inputs():
    return [torch.randn(2048, 768).bfloat16()]


def get_init_inputs():
    return [768]
