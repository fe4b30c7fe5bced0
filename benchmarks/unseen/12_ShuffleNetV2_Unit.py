import torch
import torch.nn as nn

BATCH = 96
CHANNELS = 232
SIZE = 28


def channel_shuffle(x, groups):
    b, c, h, w = x.shape
    x = x.view(b, groups, c // groups, h, w)
    x = x.transpose(1, 2).contiguous()
    return x.view(b, c, h, w)


class Model(nn.Module):
    """
    ShuffleNetV2 unit (batch statistics in the batch norms): channel split,
    1x1 / depthwise 3x3 / 1x1 branch, concat and channel shuffle.
    """

    def __init__(self, channels):
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(inplace=True),
            nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False),
            nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(inplace=True),
        )
        for m in self.branch:
            if isinstance(m, nn.BatchNorm2d):
                nn.init.uniform_(m.weight, 0.6, 1.4)
                nn.init.normal_(m.bias, 0.0, 0.3)

    def forward(self, x):
        x1, x2 = x.chunk(2, dim=1)
        out = torch.cat((x1, self.branch(x2)), dim=1)
        return channel_shuffle(out, 2)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS]
