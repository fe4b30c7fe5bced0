"""Robotics: damped least-squares resolved-rate control of a batch of 7-joint arms (FK, Jacobian, 6x6 solve, nullspace)."""
import torch
import torch.nn as nn

BATCH, JOINTS = 1048576, 7
HALF_PI = 1.5707963267948966
# modified (Craig) DH parameters of a Franka-like arm: a, d, alpha per joint; joint-range centres
A = [0.0, 0.0, 0.0, 0.0825, -0.0825, 0.0, 0.088]
D = [0.333, 0.0, 0.316, 0.0, 0.384, 0.0, 0.107]
ALPHA = [0.0, -HALF_PI, HALF_PI, HALF_PI, -HALF_PI, HALF_PI, HALF_PI]
Q_MID = [0.0, 0.0, 0.0, -1.57, 0.0, 1.87, 0.0]
DAMPING, NULL_GAIN, QD_MAX = 0.05, 0.3, 2.0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        a, d, al = torch.tensor(A), torch.tensor(D), torch.tensor(ALPHA)
        ca, sa = al.cos(), al.sin()
        # link transform(q) = tc * cos(q) + ts * sin(q) + t0
        tc, ts, t0 = (torch.zeros(JOINTS, 4, 4) for _ in range(3))
        tc[:, 0, 0], tc[:, 1, 1], tc[:, 2, 1] = 1.0, ca, sa
        ts[:, 0, 1], ts[:, 1, 0], ts[:, 2, 0] = -1.0, ca, sa
        t0[:, 0, 3], t0[:, 1, 2], t0[:, 1, 3] = a, -sa, -d * sa
        t0[:, 2, 2], t0[:, 2, 3], t0[:, 3, 3] = ca, d * ca, 1.0
        for name, t in (("tc", tc), ("ts", ts), ("t0", t0), ("q_mid", torch.tensor(Q_MID)), ("eye", torch.eye(6))):
            self.register_buffer(name, t)

    def forward(self, q, twist):
        """q (B, 7) joint angles, twist (B, 6) wanted tool velocity [linear, angular] -> joint velocities (B, 7)."""
        links = self.tc * q.cos()[..., None, None] + self.ts * q.sin()[..., None, None] + self.t0
        pose = links[:, 0]
        poses = [pose]
        for i in range(1, JOINTS):
            pose = torch.matmul(pose, links[:, i])
            poses.append(pose)
        frames = torch.stack(poses, dim=1)                       # (B, 7, 4, 4)
        z, p = frames[..., :3, 2], frames[..., :3, 3]
        lin = torch.cross(z, p[:, -1:] - p, dim=-1)
        jt = torch.cat([lin, z], dim=-1)                         # transposed Jacobian (B, 7, 6)
        null = NULL_GAIN * (self.q_mid - q)
        rhs = twist - (jt * null[..., None]).sum(dim=1)
        normal = torch.matmul(jt.transpose(1, 2), jt) + DAMPING * self.eye
        m = torch.cat([normal, rhs[..., None]], dim=-1)          # (B, 6, 7) augmented system, SPD
        for k in range(6):                                       # Gauss-Jordan elimination
            row = m[:, k:k + 1] / m[:, k:k + 1, k:k + 1]
            m = m - (m[:, :, k:k + 1] - self.eye[:, k:k + 1]) * row
        qd = (jt * m[:, None, :, 6]).sum(dim=-1) + null
        peak = qd.abs().amax(dim=-1, keepdim=True)
        return qd * (QD_MAX / peak).clamp(max=1.0)


def get_inputs():
    return [torch.tensor(Q_MID) + 0.8 * torch.randn(BATCH, JOINTS), 0.5 * torch.randn(BATCH, 6)]


def get_init_inputs():
    return []
