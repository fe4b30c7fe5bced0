import torch
import torch.nn as nn

BATCH = 24
DIM = 192
SIZE = 56
EXPANSION = 4
KERNEL = 7


class Model(nn.Module):
    """
    ConvNeXt block: depthwise 7x7 conv, channels-last LayerNorm, pointwise MLP
    with GELU, layer scale and residual.
    """

    def __init__(self, dim, expansion, kernel):
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, kernel, padding=kernel // 2, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1 = nn.Linear(dim, expansion * dim)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(expansion * dim, dim)
        self.gamma = nn.Parameter(0.5 + torch.rand(dim))
        nn.init.normal_(self.pwconv1.weight, std=(1.0 / dim) ** 0.5)
        nn.init.normal_(self.pwconv2.weight, std=(2.0 / (expansion * dim)) ** 0.5)

    def forward(self, x):
        shortcut = x
        x = self.dwconv(x)
        x = x.permute(0, 2, 3, 1)
        x = self.norm(x)
        x = self.pwconv1(x)
        x = self.act(x)
        x = self.pwconv2(x)
        x = self.gamma * x
        x = x.permute(0, 3, 1, 2)
        return shortcut + x


def get_inputs():
    return [torch.randn(BATCH, DIM, SIZE, SIZE)]


def get_init_inputs():
    return [DIM, EXPANSION, KERNEL]
