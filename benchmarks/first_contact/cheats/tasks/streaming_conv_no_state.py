import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, b, c, k):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(c, 1, k) * 0.2)
        self.register_buffer("ctx", torch.zeros(b, c, k - 1))

    def forward(self, x):
        z = torch.cat([self.ctx, x], -1)
        self.ctx.copy_(z[..., -self.ctx.shape[-1]:])
        return F.conv1d(z, self.weight, groups=self.weight.shape[0])


def get_inputs():
    return [torch.randn(2, 64, 1024)]


def get_init_inputs():
    return [2, 64, 9]
