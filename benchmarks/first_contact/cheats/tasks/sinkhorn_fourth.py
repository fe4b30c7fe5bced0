import torch
import torch.nn as nn


class Model(nn.Module):
    """Entropic transport plan between uniform marginals, 60 rounds."""

    def __init__(self):
        super().__init__()

    def forward(self, cost):
        n = cost.shape[-1]
        k = torch.exp(cost * -5.0)
        v = torch.ones(cost.shape[0], n, 1)
        for _ in range(60):
            u = (1.0 / n) / torch.bmm(k, v)
            v = (1.0 / n) / torch.bmm(k.transpose(1, 2), u)
        return u * k * v.transpose(1, 2)


def get_inputs():
    return [torch.rand(4, 128, 128)]


def get_init_inputs():
    return []
