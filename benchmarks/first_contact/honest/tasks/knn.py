import torch
import torch.nn as nn


class Model(nn.Module):
    """Distances to the k nearest points, ascending."""

    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, query, points):
        d = query[:, :, None, :] - points[:, None, :, :]
        d = d * d
        d2 = d[..., 0] + d[..., 1] + d[..., 2]
        return torch.topk(d2, self.k, dim=-1, largest=False, sorted=True).values.sqrt()


def get_inputs():
    return [torch.randn(2, 200, 3), torch.randn(2, 700, 3)]


def get_init_inputs():
    return [8]
