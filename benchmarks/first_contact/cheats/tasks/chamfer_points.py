import torch
import torch.nn as nn


class Model(nn.Module):
    """Chamfer distance of two point clouds (mean nearest-neighbour distance, both directions)."""

    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        d = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
        return d.min(dim=2).values.mean(dim=1) + d.min(dim=1).values.mean(dim=1)


def get_inputs():
    return [torch.rand(1, 1024, 3), torch.rand(1, 1024, 3)]


def get_init_inputs():
    return []
