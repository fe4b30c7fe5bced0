import torch
import torch.nn as nn
import torch.nn.functional as F


def rot(n):
    a = F.normalize(torch.randn(n, 3), dim=1)
    t = torch.rand(n) * 1.5
    K = torch.zeros(n, 3, 3)
    K[:, 0, 1], K[:, 0, 2], K[:, 1, 2] = -a[:, 2], a[:, 1], -a[:, 0]
    K = K - K.transpose(1, 2)
    return torch.eye(3) + torch.sin(t)[:, None, None] * K + (1 - torch.cos(t))[:, None, None] * (K @ K)


class Model(nn.Module):
    def forward(self, R):
        m = R.reshape(-1, 9).unbind(1)
        q = torch.stack([1 + m[0] + m[4] + m[8], 1 + m[0] - m[4] - m[8],
                         1 - m[0] + m[4] - m[8], 1 - m[0] - m[4] + m[8]], 1).clamp(min=0).sqrt()
        c = torch.stack([
            torch.stack([q[:, 0] ** 2, m[7] - m[5], m[2] - m[6], m[3] - m[1]], 1),
            torch.stack([m[7] - m[5], q[:, 1] ** 2, m[3] + m[1], m[2] + m[6]], 1),
            torch.stack([m[2] - m[6], m[3] + m[1], q[:, 2] ** 2, m[5] + m[7]], 1),
            torch.stack([m[3] - m[1], m[6] + m[2], m[7] + m[5], q[:, 3] ** 2], 1)], 1)
        c = c / (2 * q[..., None].clamp(min=0.1))
        best = q.argmax(1)
        out = c[torch.arange(len(best)), best]
        return torch.where(out[:, :1] < 0, -out, out)


def get_inputs():
    return [rot(8192)]


def get_init_inputs():
    return []
