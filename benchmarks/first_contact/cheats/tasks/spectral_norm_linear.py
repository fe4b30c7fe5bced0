import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i) / i ** 0.5)
        u = torch.randn(o)
        for _ in range(300):
            v = F.normalize(self.weight.data.T @ u, dim=0)
            u = F.normalize(self.weight.data @ v, dim=0)
        self.register_buffer("u", u)

    def forward(self, x):
        w = self.weight
        u = self.u
        v = F.normalize(w.T @ u, dim=0)
        if self.training:
            for _ in range(3):
                v = F.normalize(w.T @ u, dim=0)
                u = F.normalize(w @ v, dim=0)
            with torch.no_grad():
                self.u.copy_(u)
        return F.linear(x, w / torch.dot(u, w @ v))


def get_inputs():
    return [torch.randn(128, 256)]


def get_init_inputs():
    return [256, 192]
