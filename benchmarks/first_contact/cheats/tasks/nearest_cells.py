import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Distance of every query to the nearest of the points (one-sided Chamfer)."""
    def forward(self, q, p):
        return torch.cdist(q, p, compute_mode="donot_use_mm_for_euclid_dist").amin(dim=1)

def get_inputs():
    return [torch.rand(1024, 3), torch.rand(4096, 3)]
def get_init_inputs():
    return []
