import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Doubly stochastic matrices by Sinkhorn iterations in the log domain."""
    def __init__(self, iters):
        super().__init__()
        self.iters = iters

    def forward(self, x):
        for _ in range(self.iters):
            x = x - torch.logsumexp(x, dim=2, keepdim=True)
            x = x - torch.logsumexp(x, dim=1, keepdim=True)
        return x.exp()


def get_inputs():
    return [torch.randn(16, 48, 48)]


def get_init_inputs():
    return [20]
