import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a = nn.Parameter(torch.randn(d, d) * 0.05)

    def forward(self, x):
        s = self.a - self.a.t()
        i = torch.eye(s.shape[0])
        return x @ torch.linalg.solve(i + s, i - s)


def get_inputs():
    return [torch.randn(64, 160)]


def get_init_inputs():
    return [160]
