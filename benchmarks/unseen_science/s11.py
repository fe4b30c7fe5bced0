import math
import torch
import torch.nn as nn

O, P, T = 5, 9000, 16


class Model(nn.Module):
    """Heston Monte Carlo with full truncation: Asian and down-and-out barrier call prices from given normals, per parameter set."""

    def __init__(self, s0, strike, barrier, rate, years):
        super().__init__()
        self.s0, self.k, self.barrier, self.r, self.years = s0, strike, barrier, rate, years

    def forward(self, z, par):
        dt = self.years / z.shape[-1]
        sq = math.sqrt(dt)
        kappa, theta, xi, rho, v0 = [p[:, None] for p in par.unbind(1)]
        rho = 0.9 * torch.tanh(rho - 1.0)
        comp = torch.sqrt(1.0 - rho * rho)
        x = torch.zeros_like(z[:, 0, :, 0]) + math.log(self.s0)
        v = (0.02 + 0.1 * v0).expand_as(x)
        total = torch.zeros_like(x)
        low = x
        for t in range(z.shape[-1]):
            z1, z2 = z[:, 0, :, t], z[:, 1, :, t]
            vp = v.clamp(min=0)
            sv = torch.sqrt(vp) * sq
            x = x + (self.r - 0.5 * vp) * dt + sv * z1
            v = v + (1 + kappa) * (0.1 * theta - vp) * dt + 0.5 * xi * sv * (rho * z1 + comp * z2)
            total = total + torch.exp(x)
            low = torch.minimum(low, x)
        disc = math.exp(-self.r * self.years)
        asian = (total / z.shape[-1] - self.k).clamp(min=0)
        alive = low > math.log(self.barrier)
        dob = torch.where(alive, (torch.exp(x) - self.k).clamp(min=0), torch.zeros_like(x))
        pay = torch.stack([asian, dob], dim=1) * disc
        return torch.cat([pay.mean(2), pay.std(2), alive.float().mean(1, keepdim=True)], dim=1)


def get_inputs():
    return [torch.randn(O, 2, P, T), torch.rand(O, 5)]


def get_init_inputs():
    return [100.0, 98.0, 85.0, 0.03, 1.0]
