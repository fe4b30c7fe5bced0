import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """5x5 bilateral filter, reflecting border."""

    def __init__(self, sigma_space, sigma_range):
        super().__init__()
        c = torch.arange(5.0) - 2
        r2 = c[:, None] ** 2 + c[None, :] ** 2
        self.register_buffer("spatial", torch.exp(-r2 / (2 * sigma_space ** 2)).reshape(25))
        self.k = 1.0 / (2 * sigma_range ** 2)

    def forward(self, x):
        b, _, h, w = x.shape
        p = F.unfold(F.pad(x, (2, 2, 2, 2), mode="reflect"), 5).view(b, 25, h, w)
        d = p - x
        wgt = self.spatial.view(1, 25, 1, 1) * torch.exp(-(d * d) * self.k)
        return (wgt * p).sum(1, keepdim=True) / wgt.sum(1, keepdim=True)


def get_inputs():
    return [torch.rand(3, 1, 96, 96)]


def get_init_inputs():
    return [1.5, 0.2]
