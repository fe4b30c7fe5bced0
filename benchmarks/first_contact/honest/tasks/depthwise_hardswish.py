import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Depthwise 3x3 convolution with stride 2 and hardswish (a MobileNetV3 piece)."""

    def __init__(self, channels: int):
        super().__init__()
        self.dw = nn.Conv2d(channels, channels, 3, stride=2, padding=1, groups=channels, bias=True)

    def forward(self, x):
        return F.hardswish(self.dw(x))


def get_inputs():
    return [torch.randn(4, 48, 56, 56)]


def get_init_inputs():
    return [48]
