import torch
import torch.nn as nn

BATCH = 4
IN_CHANNELS = 32
OUT_CHANNELS = 64
FRAMES = 16
SIZE = 112


class Model(nn.Module):
    """
    Video stem stage: 3x3x3 convolution, learned per-channel bias, ReLU,
    and max pooling in time and space.
    """

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size=3, padding=1, bias=False)
        self.bias = nn.Parameter(0.3 * torch.randn(out_channels, 1, 1, 1))
        self.pool = nn.MaxPool3d(kernel_size=(2, 2, 2), stride=(2, 2, 2))

    def forward(self, x):
        x = self.conv(x)
        x = torch.relu(x + self.bias)
        return self.pool(x)


def get_inputs():
    return [torch.randn(BATCH, IN_CHANNELS, FRAMES, SIZE, SIZE)]


def get_init_inputs():
    return [IN_CHANNELS, OUT_CHANNELS]
