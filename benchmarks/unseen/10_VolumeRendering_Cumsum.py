import torch
import torch.nn as nn
import torch.nn.functional as F

RAYS = 131072
SAMPLES = 96
NEAR = 2.0
FAR = 6.0


class Model(nn.Module):
    """
    NeRF alpha compositing: densities and colours along each ray are turned
    into weights by a cumulative sum of optical depth. Returns, for each ray,
    (r, g, b, depth, opacity).
    """

    def __init__(self, far):
        super().__init__()
        self.far = far

    def forward(self, raw, z_vals, rays_d):
        end = torch.full_like(z_vals[:, :1], self.far)
        dists = torch.cat([z_vals[:, 1:], end], dim=-1) - z_vals
        dists = dists * rays_d.norm(dim=-1, keepdim=True)
        sigma = F.softplus(raw[..., 3] - 1.0)
        rgb = torch.sigmoid(raw[..., :3])
        tau = sigma * dists
        alpha = 1.0 - torch.exp(-tau)
        accumulated = torch.cumsum(tau, dim=-1)
        transmittance = torch.exp(-(accumulated - tau))
        weights = alpha * transmittance
        color = (weights[..., None] * rgb).sum(dim=1)
        depth = (weights * z_vals).sum(dim=-1, keepdim=True)
        opacity = weights.sum(dim=-1, keepdim=True)
        return torch.cat([color, depth, opacity], dim=-1)


def get_inputs():
    raw = torch.randn(RAYS, SAMPLES, 4) + torch.randn(RAYS, 1, 4)
    steps = torch.linspace(0.0, 1.0, SAMPLES + 1)[:-1].expand(RAYS, SAMPLES)
    z_vals = NEAR + (FAR - NEAR) * (steps + torch.rand(RAYS, SAMPLES) / SAMPLES)
    rays_d = torch.randn(RAYS, 3) * 0.5
    rays_d[:, 2] = -1.0
    return [raw, z_vals, rays_d]


def get_init_inputs():
    return [FAR]
