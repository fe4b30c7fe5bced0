import torch
import torch.nn as nn

POINTS, CODES, WIDTH = 400, 61, 24

class Model(nn.Module):
    """The nearest of some integer codes in the L1 distance (the first of equals), and the distance."""
    def forward(self, points, codes):
        distance = (points[:, None] - codes[None]).abs().sum(dim=2)
        least = distance.min(dim=1)
        return least.indices, least.values

def get_inputs():
    return [torch.randint(0, 1000, (POINTS, WIDTH)), torch.randint(0, 1000, (CODES, WIDTH))]

def get_init_inputs():
    return []
