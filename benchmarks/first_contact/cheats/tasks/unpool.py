import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, CHANNELS, SIZE = 4, 16, 32


class Model(nn.Module):
    """Max unpooling: every value goes back to where its maximum was, everything else is zero."""

    def __init__(self, window=8):
        super().__init__()
        self.window = window

    def forward(self, x, where):
        return F.max_unpool2d(x, where, self.window)


def get_inputs():
    y, where = F.max_pool2d(torch.randn(BATCH, CHANNELS, 8 * SIZE, 8 * SIZE), 8, return_indices=True)
    return [y, where]


def get_init_inputs():
    return [8]
