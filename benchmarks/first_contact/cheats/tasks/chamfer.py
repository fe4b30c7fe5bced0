import torch
import torch.nn as nn

N = 1500


class Model(nn.Module):
    """Distance of every point to the nearest point of the other cloud (both ways)."""

    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        d = (a.unsqueeze(1) - b.unsqueeze(0)).pow(2).sum(-1)
        return d.min(1).values.sqrt(), d.min(0).values.sqrt()


def get_inputs():
    return [torch.rand(N, 3), torch.rand(N, 3)]


def get_init_inputs():
    return []
