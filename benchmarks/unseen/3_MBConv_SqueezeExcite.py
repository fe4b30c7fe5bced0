import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 48
IN_CHANNELS = 40
OUT_CHANNELS = 80
EXPAND = 6
SIZE = 76
KERNEL = 5
STRIDE = 2
SQUEEZE = 10


class FrozenBatchNorm2d(nn.Module):
    def __init__(self, channels, eps=1e-3):
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", 1.0 + 0.1 * torch.randn(channels))
        self.register_buffer("bias", 0.1 * torch.randn(channels))
        self.register_buffer("running_mean", 0.1 * torch.randn(channels))
        self.register_buffer("running_var", 0.2 + 0.5 * torch.rand(channels))

    def forward(self, x):
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)


class Model(nn.Module):
    """
    EfficientNet MBConv at inference: 1x1 expand, depthwise 5x5 stride 2,
    squeeze-and-excite, 1x1 project; batch norms are frozen.
    """

    def __init__(self, in_channels, out_channels, expand, kernel, stride, squeeze):
        super().__init__()
        mid = in_channels * expand
        self.expand_conv = nn.Conv2d(in_channels, mid, 1, bias=False)
        self.bn0 = FrozenBatchNorm2d(mid)
        self.dw_conv = nn.Conv2d(mid, mid, kernel, stride=stride, padding=kernel // 2, groups=mid, bias=False)
        self.bn1 = FrozenBatchNorm2d(mid)
        self.se_reduce = nn.Conv2d(mid, squeeze, 1)
        self.se_expand = nn.Conv2d(squeeze, mid, 1)
        self.project = nn.Conv2d(mid, out_channels, 1, bias=False)
        self.bn2 = FrozenBatchNorm2d(out_channels)
        for conv in (self.expand_conv, self.dw_conv, self.se_reduce, self.se_expand, self.project):
            nn.init.kaiming_normal_(conv.weight, mode="fan_in", nonlinearity="relu")

    def forward(self, x):
        x = F.silu(self.bn0(self.expand_conv(x)))
        x = F.silu(self.bn1(self.dw_conv(x)))
        s = F.adaptive_avg_pool2d(x, 1)
        s = self.se_expand(F.silu(self.se_reduce(s)))
        x = torch.sigmoid(s) * x
        return self.bn2(self.project(x))


def get_inputs():
    return [torch.randn(BATCH, IN_CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [IN_CHANNELS, OUT_CHANNELS, EXPAND, KERNEL, STRIDE, SQUEEZE]
