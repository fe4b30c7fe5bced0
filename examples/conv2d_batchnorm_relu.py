import torch
import torch.nn as nn

BATCH = 16
CHANNELS = 32
OUT_CHANNELS = 64
SIZE = 56
SCALE = 1


class Model(nn.Module):
    """A convolution block as in a residual network, in training mode: batch norm uses the batch's own statistics."""

    def __init__(self, channels: int, out_channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, kernel_size=3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)))


def get_inputs():
    return [torch.randn(BATCH * SCALE, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS, OUT_CHANNELS]
