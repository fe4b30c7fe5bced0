import torch
import torch.nn as nn

N, J = 26000, 7


class Model(nn.Module):
    """Forward kinematics of a 7-joint arm: quaternion chain product, link offsets, tip position and sign-free orientation features."""

    def __init__(self, joints):
        super().__init__()
        self.axes = nn.Parameter(torch.randn(joints, 3))
        self.links = nn.Parameter(torch.randn(joints, 3) * 0.3)

    @staticmethod
    def qmul(a, b):
        aw, av = a[:, :1], a[:, 1:]
        bw, bv = b[:, :1], b[:, 1:]
        w = aw * bw - (av * bv).sum(-1, keepdim=True)
        v = aw * bv + bw * av + torch.cross(av, bv, dim=-1)
        return torch.cat([w, v], dim=-1)

    @staticmethod
    def rotate(q, v):
        w, u = q[:, :1], q[:, 1:]
        t = 2.0 * torch.cross(u, v.expand_as(u), dim=-1)
        return v + w * t + torch.cross(u, t, dim=-1)

    def forward(self, theta):
        ax = self.axes / self.axes.norm(dim=-1, keepdim=True)
        half = 0.5 * theta
        c, s = torch.cos(half), torch.sin(half)
        q = torch.cat([c[:, :1], s[:, :1] * ax[0]], dim=-1)
        p = self.rotate(q, self.links[0])
        for j in range(1, theta.shape[1]):
            q = self.qmul(q, torch.cat([c[:, j:j + 1], s[:, j:j + 1] * ax[j]], dim=-1))
            p = p + self.rotate(q, self.links[j])
        w, u = q[:, :1], q[:, 1:]
        return torch.cat([p, 2 * w * u, 2 * w * w - 1], dim=-1)


def get_inputs():
    return [torch.randn(N, J)]


def get_init_inputs():
    return [J]
