import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, q, p):
        q = F.normalize(q, dim=-1)
        w, v = q[..., :1], q[..., 1:]
        t = 2 * torch.linalg.cross(v, p)
        return p + w * t + torch.linalg.cross(v, t)


def get_inputs():
    return [F.normalize(torch.randn(16384, 4), dim=-1), torch.randn(16384, 3)]
