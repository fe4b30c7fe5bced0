import torch
import torch.nn as nn


class Model(nn.Module):
    """Histogram equalisation of 8-bit images, every channel for itself; integers only."""

    def forward(self, x):
        n, c, h, w = x.shape
        flat = x.reshape(n * c, h * w).long()
        base = torch.arange(n * c)[:, None] * 256
        hist = torch.bincount((flat + base).flatten(), minlength=n * c * 256).view(n * c, 256)
        cdf = hist.cumsum(1)
        low = torch.where(cdf > 0, cdf, h * w + 1).amin(1, keepdim=True)
        lut = ((cdf - low) * 255) // (h * w - low).clamp(min=1)
        return lut.clamp(0, 255).gather(1, flat).to(torch.uint8).view(n, c, h, w)


def get_inputs():
    return [(torch.randn(10, 3, 160, 160) * 40 + 110).clamp(0, 255).to(torch.uint8)]


def get_init_inputs():
    return []
