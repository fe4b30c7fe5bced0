import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(0.3, 0.7, c))

    def forward(self, x):
        t = torch.arange(x.shape[1])
        d = (t[:, None] - t[None, :])
        k = torch.where(d >= 0, self.decay[:, None, None] ** d.clamp(min=0), torch.zeros(()))
        return torch.einsum("cts,bsc->btc", k, x) * (1 - self.decay)


def get_inputs():
    return [torch.randn(8, 64, 64)]


def get_init_inputs():
    return [64]
