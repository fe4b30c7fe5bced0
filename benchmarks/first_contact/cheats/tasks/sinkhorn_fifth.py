import torch
import torch.nn as nn

BATCH, N, ITERATIONS = 16, 64, 80


class Model(nn.Module):
    """Entropic transport plans between uniform marginals: a fixed number of Sinkhorn iterations."""

    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, cost):
        k = torch.exp(-cost / self.eps)
        n = cost.shape[-1]
        v = torch.ones(cost.shape[0], n, 1, dtype=cost.dtype)
        for _ in range(ITERATIONS):
            u = 1.0 / (n * torch.bmm(k, v))
            v = 1.0 / (n * torch.bmm(k.transpose(1, 2), u))
        return u * k * v.transpose(1, 2)


def get_inputs():
    return [torch.rand(BATCH, N, N)]


def get_init_inputs():
    return [0.5]
