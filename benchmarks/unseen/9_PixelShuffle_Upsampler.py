import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4
FEATURES = 64
IMAGE_CHANNELS = 3
HEIGHT = 180
WIDTH = 320
SCALE = 2


class Model(nn.Module):
    """
    Super-resolution head: conv to scale^2 * C channels, pixel shuffle,
    LeakyReLU, conv to RGB, added to the bilinear upsampled low-res image.
    """

    def __init__(self, features, image_channels, scale):
        super().__init__()
        self.scale = scale
        self.up_conv = nn.Conv2d(features, features * scale * scale, 3, 1, 1)
        self.shuffle = nn.PixelShuffle(scale)
        self.last_conv = nn.Conv2d(features, image_channels, 3, 1, 1)

    def forward(self, feat, lowres):
        out = self.shuffle(self.up_conv(feat))
        out = F.leaky_relu(out, negative_slope=0.1)
        out = self.last_conv(out)
        base = F.interpolate(lowres, scale_factor=self.scale, mode="bilinear", align_corners=False)
        return out + base


def get_inputs():
    feat = torch.randn(BATCH, FEATURES, HEIGHT, WIDTH)
    lowres = torch.rand(BATCH, IMAGE_CHANNELS, HEIGHT, WIDTH)
    return [feat, lowres]


def get_init_inputs():
    return [FEATURES, IMAGE_CHANNELS, SCALE]
