import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Distance from every query to its nearest point (one side of the Chamfer distance)."""
    def __init__(self):
        super().__init__()

    def forward(self, q, p):
        return torch.cdist(q, p, compute_mode="donot_use_mm_for_euclid_dist").min(dim=1).values

def get_inputs():
    return [torch.rand(2000, 3), torch.rand(2000, 3)]

def get_init_inputs():
    return []
