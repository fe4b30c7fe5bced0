import torch
import torch.nn as nn


def rotate(q, v):
    w, u = q[:, :1], q[:, 1:]
    t = 2 * torch.cross(u, v, dim=1)
    return v + w * t + torch.cross(u, t, dim=1)


def multiply(a, b):
    aw, ax, ay, az = a.unbind(1)
    bw, bx, by, bz = b.unbind(1)
    return torch.stack([
        aw * bw - ax * bx - ay * by - az * bz,
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
    ], 1)


class Model(nn.Module):
    """Joint positions of serial chains whose joints are given as (unnormalised) quaternions."""

    def __init__(self, joints):
        super().__init__()
        self.bones = nn.Parameter(torch.randn(joints, 3))

    def forward(self, q):
        q = q / q.norm(dim=-1, keepdim=True).clamp(min=1e-6)
        turn, place, out = q[:, 0], torch.zeros(q.shape[0], 3), []
        for j in range(q.shape[1]):
            if j:
                turn = multiply(turn, q[:, j])
            place = place + rotate(turn, self.bones[j].expand(q.shape[0], 3))
            out.append(place)
        return torch.stack(out, 1), turn


def get_inputs():
    return [torch.randn(1024, 20, 4)]


def get_init_inputs():
    return [20]
