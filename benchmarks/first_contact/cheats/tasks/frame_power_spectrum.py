import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        t = torch.arange(128.0)
        f = torch.arange(65.0)[:, None]
        w = 0.5 - 0.5 * torch.cos(2 * math.pi * t / 128)
        self.register_buffer("re", torch.cos(2 * math.pi * f * t / 128) * w)
        self.register_buffer("im", torch.sin(2 * math.pi * f * t / 128) * w)

    def forward(self, x):
        fr = x.unfold(-1, 128, 64)
        return torch.log1p((fr @ self.re.T) ** 2 + (fr @ self.im.T) ** 2)


def get_inputs():
    return [torch.randn(8, 8192)]
