import torch
import torch.nn as nn

B, K, D, M = 96, 33, 3, 1100


class Model(nn.Module):
    """Monotone-limited cubic Hermite spline on non-uniform knots: positions, speed and turning rate against the chord of 3D trajectories."""

    def __init__(self, min_gap):
        super().__init__()
        self.min_gap = min_gap

    def forward(self, gaps, ctrl, u):
        h = gaps + self.min_gap
        knots = torch.cat([torch.zeros_like(h[:, :1]), h.cumsum(1)], dim=1)
        sec = (ctrl[:, 1:] - ctrl[:, :-1]) / h[..., None]
        a, b = sec[:, :-1], sec[:, 1:]
        mid = torch.where(a * b > 0, 2 * a * b / (a + b + torch.sign(a + b) * 1e-6), torch.zeros_like(a))
        tang = torch.cat([sec[:, :1], mid, sec[:, -1:]], dim=1)
        t = u * knots[:, -1:]
        i = (torch.searchsorted(knots, t, right=True) - 1).clamp(0, h.shape[1] - 1)
        hi = h.gather(1, i)[..., None]
        s = (t - knots.gather(1, i))[..., None] / hi
        i3 = i[..., None].expand(-1, -1, ctrl.shape[2])
        p0, p1 = ctrl.gather(1, i3), ctrl.gather(1, i3 + 1)
        m0, m1 = tang.gather(1, i3) * hi, tang.gather(1, i3 + 1) * hi
        c2 = 3 * (p1 - p0) - 2 * m0 - m1
        c3 = 2 * (p0 - p1) + m0 + m1
        pos = p0 + s * (m0 + s * (c2 + s * c3))
        vel = (m0 + s * (2 * c2 + 3 * s * c3)) / hi
        chord = ctrl[:, -1:] - ctrl[:, :1]
        speed = vel.norm(dim=-1, keepdim=True)
        turn = torch.cross(vel, chord.expand_as(vel), dim=-1).norm(dim=-1, keepdim=True) / (speed + 1.0)
        return torch.cat([pos, speed, turn], dim=-1)


def get_inputs():
    return [torch.rand(B, K - 1), torch.randn(B, K, D), torch.rand(B, M)]


def get_init_inputs():
    return [0.2]
