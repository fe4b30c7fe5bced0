import torch
import torch.nn as nn
import torch.nn.functional as F

B, H, W = 1, 151, 203


class Model(nn.Module):
    """Joint bilateral filter, 5x5 window: depth map smoothed with spatial and guide-colour weights, holes ignored."""

    def __init__(self, radius, sigma_s, sigma_r):
        super().__init__()
        k = 2 * radius + 1
        self.radius, self.k = radius, k
        o = torch.arange(k).float() - radius
        sp = torch.exp(-(o[:, None] ** 2 + o[None] ** 2) / (2 * sigma_s ** 2))
        self.register_buffer('spatial', sp.reshape(1, k * k, 1, 1))
        self.inv = 1.0 / (2 * sigma_r ** 2)

    def forward(self, depth, guide):
        b, _, h, w = depth.shape
        r, kk = self.radius, self.k * self.k
        gp = F.unfold(F.pad(guide, (r, r, r, r), mode='reflect'), self.k).view(b, 3, kk, h, w)
        dp = F.unfold(F.pad(depth, (r, r, r, r), mode='reflect'), self.k).view(b, kk, h, w)
        dist = (gp - guide[:, :, None]).square().sum(1)
        wgt = torch.exp(-dist * self.inv) * self.spatial
        wgt = torch.where(dp > 0.1, wgt, torch.zeros_like(wgt))
        norm = wgt.sum(1)
        mean = (wgt * dp).sum(1) / (norm + 1e-6)
        var = (wgt * (dp - mean[:, None]).square()).sum(1) / (norm + 1e-6)
        return torch.stack([mean, torch.sqrt(var + 1e-8)], dim=1)


def get_inputs():
    return [torch.rand(B, 1, H, W), torch.rand(B, 3, H, W)]


def get_init_inputs():
    return [2, 1.5, 0.25]
