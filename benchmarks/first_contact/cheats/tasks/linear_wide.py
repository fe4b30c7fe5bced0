import torch
import torch.nn as nn

BATCH, WIDTH, OUT = 8, 2048, 2048


class Model(nn.Module):
    """A linear layer for a few tokens, as in decoding."""

    def __init__(self, width, out):
        super().__init__()
        self.proj = nn.Linear(width, out)

    def forward(self, x):
        return self.proj(x)


def get_inputs():
    return [torch.randn(BATCH, WIDTH)]


def get_init_inputs():
    return [WIDTH, OUT]
