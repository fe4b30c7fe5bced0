import torch
import torch.nn as nn

BATCH = 8
IN_CHANNELS = 128
OUT_CHANNELS = 64
HEIGHT = 120
WIDTH = 160


class Model(nn.Module):
    """
    Image-translation decoder stage: stride-2 transposed convolution,
    instance norm and ReLU.
    """

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.up = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size=3, stride=2, padding=1, output_padding=1, bias=True
        )
        self.norm = nn.InstanceNorm2d(out_channels)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.norm(self.up(x)))


def get_inputs():
    return [torch.randn(BATCH, IN_CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN_CHANNELS, OUT_CHANNELS]
