import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.decay = nn.Parameter(1.5 + 0.5 * torch.rand(c))

    def forward(self, x):
        t = x.shape[1]
        a = torch.sigmoid(self.decay)
        i = torch.arange(t)
        d = (i[:, None] - i[None, :])
        w = torch.exp(torch.log(a)[:, None, None] * d.clamp(min=0)) * (d >= 0)
        return torch.einsum("cij,bjc->bic", w, x) * (1 - a)


def get_inputs():
    return [torch.randn(4, 160, 32)]


def get_init_inputs():
    return [32]
