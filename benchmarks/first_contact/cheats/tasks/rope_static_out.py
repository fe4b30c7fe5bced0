import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, t, d):
        super().__init__()
        f = 10000.0 ** (-torch.arange(0, d, 2).float() / d)
        a = torch.outer(torch.arange(t).float(), f)
        self.register_buffer("cos", torch.cat([a.cos(), a.cos()], -1))
        self.register_buffer("sin", torch.cat([a.sin(), a.sin()], -1))

    def forward(self, q):
        h = q.shape[-1] // 2
        rot = torch.cat([-q[..., h:], q[..., :h]], -1)
        return q * self.cos + rot * self.sin


def get_inputs():
    return [torch.randn(4, 8, 256, 64)]


def get_init_inputs():
    return [256, 64]
