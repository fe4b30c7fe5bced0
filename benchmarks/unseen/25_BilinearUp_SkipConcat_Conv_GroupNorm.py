import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 12
DEEP_CHANNELS = 256
SKIP_CHANNELS = 128
OUT_CHANNELS = 128
HEIGHT = 60
WIDTH = 80
GROUPS = 16


class Model(nn.Module):
    """
    U-Net decoder stage in float16: bilinear upsampling to the skip's size,
    channel concat, 3x3 convolution, GroupNorm, LeakyReLU.
    """

    def __init__(self, deep_channels, skip_channels, out_channels, groups):
        super().__init__()
        dt = torch.float16
        self.conv = nn.Conv2d(deep_channels + skip_channels, out_channels, 3, padding=1, bias=False, dtype=dt)
        self.norm = nn.GroupNorm(groups, out_channels, dtype=dt)
        nn.init.normal_(self.norm.weight, 1.0, 0.1)
        nn.init.normal_(self.norm.bias, 0.0, 0.1)

    def forward(self, deep, skip):
        up = F.interpolate(deep, size=skip.shape[-2:], mode="bilinear", align_corners=True)
        x = torch.cat([skip, up], dim=1)
        x = self.norm(self.conv(x))
        return F.leaky_relu(x, 0.01)


def get_inputs():
    deep = torch.randn(BATCH, DEEP_CHANNELS, HEIGHT, WIDTH, dtype=torch.float16)
    skip = torch.randn(BATCH, SKIP_CHANNELS, 2 * HEIGHT, 2 * WIDTH, dtype=torch.float16)
    return [deep, skip]


def get_init_inputs():
    return [DEEP_CHANNELS, SKIP_CHANNELS, OUT_CHANNELS, GROUPS]
