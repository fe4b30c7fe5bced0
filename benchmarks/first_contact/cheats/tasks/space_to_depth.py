import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, CHANNELS, SIZE = 4, 8, 256


class Model(nn.Module):
    """Pixel unshuffle: blocks of 4 x 4 pixels become channels."""

    def __init__(self, factor=4):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return F.pixel_unshuffle(x, self.factor)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [4]
