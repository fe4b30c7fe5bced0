import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, n=512):
        super().__init__()
        j = torch.arange(n, dtype=torch.float32)
        w = torch.stack([torch.ones(n), j / (n - 1), j * (j - 1) / ((n - 1) * (n - 2)),
                         j * (j - 1) * (j - 2) / ((n - 1) * (n - 2) * (n - 3))], 1) / n
        c = torch.tensor([[1., -1, 1, -1], [0, 2, -6, 12], [0, 0, 6, -30], [0, 0, 0, 20]])
        self.register_buffer("w", w @ c)

    def forward(self, x):
        return x.sort(dim=1).values @ self.w


def get_inputs():
    return [torch.randn(128, 512)]


def get_init_inputs():
    return [512]
