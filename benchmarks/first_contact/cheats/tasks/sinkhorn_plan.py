import torch
import torch.nn as nn


class Model(nn.Module):
    """Entropic optimal transport between uniform marginals: 50 Sinkhorn iterations, returns the plan times n."""

    def __init__(self, eps, iters):
        super().__init__()
        self.eps, self.iters = eps, iters

    def forward(self, cost):
        K = torch.exp(-cost / self.eps)
        n = cost.shape[1]
        u = torch.ones(cost.shape[0], n, 1)
        for _ in range(self.iters):
            v = (1.0 / n) / (K.transpose(1, 2) @ u)
            u = (1.0 / n) / (K @ v)
        return u * K * v.transpose(1, 2) * n


def get_inputs():
    return [torch.rand(4, 128, 128)]


def get_init_inputs():
    return [0.1, 50]
