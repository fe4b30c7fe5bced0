import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w = nn.Parameter(torch.randn(c, c) * 0.1)

    def forward(self, x):
        ctx = torch.sigmoid(x.mean(dim=(2, 3)) @ self.w.t())
        return ctx[:, :, None, None].repeat(1, 1, x.shape[2], x.shape[3])


def get_inputs():
    return [torch.randn(32, 64, 32, 32)]


def get_init_inputs():
    return [64]
