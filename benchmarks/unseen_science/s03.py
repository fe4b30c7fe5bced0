import math
import torch
import torch.nn as nn

B, N = 3, 300


class Model(nn.Module):
    """Smoothed-particle hydrodynamics: poly6 density, Tait pressure, spiky pressure force and viscosity force."""

    def __init__(self, h, rho0, mu, stiff):
        super().__init__()
        self.h, self.rho0, self.mu, self.stiff = h, rho0, mu, stiff
        self.poly6 = 315.0 / (64.0 * math.pi * h ** 9)
        self.spiky = -45.0 / (math.pi * h ** 6)

    def forward(self, pos, vel, mass):
        h = self.h
        diff = pos[:, :, None, :] - pos[:, None, :, :]
        r2 = (diff * diff).sum(-1)
        w = self.poly6 * (h * h - r2).clamp(min=0) ** 3
        rho = (w * mass[:, None, :]).sum(-1)
        ratio = (rho / self.rho0).clamp(max=2.0)
        press = self.stiff * (ratio ** 3 - 1.0).clamp(min=0)
        r = torch.sqrt(r2 + 1e-8)
        near = (h - r).clamp(min=0)
        coef = mass[:, None, :] * (press[:, :, None] + press[:, None, :]) / (2 * rho[:, None, :])
        f_p = -(coef * self.spiky * near * near / r)[..., None] * diff
        dv = vel[:, None, :, :] - vel[:, :, None, :]
        f_v = (self.mu * mass[:, None, :] / rho[:, None, :] * -self.spiky * near)[..., None] * dv
        acc = (f_p + f_v).sum(2) / rho[..., None]
        return torch.cat([acc, ratio[..., None]], -1)


def get_inputs():
    return [torch.rand(B, N, 3), torch.randn(B, N, 3), torch.rand(B, N) + 0.5]


def get_init_inputs():
    return [0.4, 250.0, 2.0, 40.0]
