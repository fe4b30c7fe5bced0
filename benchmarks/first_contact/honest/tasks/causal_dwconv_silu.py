import torch, torch.nn as nn, torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, dim, k):
        super().__init__()
        self.k = k
        self.conv = nn.Conv1d(dim, dim, k, groups=dim)

    def forward(self, x):
        y = self.conv(F.pad(x.transpose(1, 2), (self.k - 1, 0)))
        return F.silu(y).transpose(1, 2)


def get_inputs():
    return [torch.randn(4, 256, 192)]


def get_init_inputs():
    return [192, 4]
