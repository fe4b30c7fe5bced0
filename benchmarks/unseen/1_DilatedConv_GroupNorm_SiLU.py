import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 16
CHANNELS = 96
HEIGHT = 96
WIDTH = 112
GROUPS = 8
DILATIONS = (1, 2, 4)


class Model(nn.Module):
    """
    Multi-rate context block: parallel dilated 3x3 convolutions summed,
    GroupNorm, SiLU, and an identity skip.
    """

    def __init__(self, channels, groups, dilations):
        super().__init__()
        self.branches = nn.ModuleList(
            [nn.Conv2d(channels, channels, 3, padding=d, dilation=d, bias=(i == 0)) for i, d in enumerate(dilations)]
        )
        self.norm = nn.GroupNorm(groups, channels, eps=1e-5)
        nn.init.normal_(self.norm.weight, 1.0, 0.2)
        nn.init.normal_(self.norm.bias, 0.0, 0.2)

    def forward(self, x):
        y = self.branches[0](x)
        for conv in self.branches[1:]:
            y = y + conv(x)
        y = self.norm(y)
        return x + F.silu(y)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [CHANNELS, GROUPS, DILATIONS]
