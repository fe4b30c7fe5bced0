import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        lo, hi = x.min(), x.max()
        scale = (hi - lo) / 255
        zp = torch.round(-lo / scale)
        q = torch.clamp(torch.round(x / scale) + zp, 0, 255)
        return (q - zp) * scale

def get_inputs():
    x = torch.randn(128, 2048).clamp(-3, 3)
    return [x]


def get_init_inputs():
    return []
