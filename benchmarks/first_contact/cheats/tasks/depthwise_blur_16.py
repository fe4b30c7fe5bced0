import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c, k):
        super().__init__()
        g = torch.exp(-(torch.arange(k).float() - k // 2) ** 2 / 8)
        w = g[:, None] * g[None, :]
        self.weight = nn.Parameter((w / w.sum()).expand(c, 1, k, k).clone())

    def forward(self, x):
        return F.conv2d(x, self.weight, padding=self.weight.shape[-1] // 2, groups=self.weight.shape[0])


def get_inputs():
    return [torch.randn(4, 32, 48, 48)]


def get_init_inputs():
    return [32, 9]
