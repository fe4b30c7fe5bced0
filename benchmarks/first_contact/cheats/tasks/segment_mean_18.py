import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def forward(self, x, batch):
        s = torch.zeros(self.n, x.shape[1]).index_add_(0, batch, x)
        c = torch.zeros(self.n).index_add_(0, batch, torch.ones(x.shape[0]))
        return s / c.clamp(min=1)[:, None]


def get_inputs():
    return [torch.randn(4096, 64), torch.randint(0, 128, (4096,)).sort().values]


def get_init_inputs():
    return [128]
