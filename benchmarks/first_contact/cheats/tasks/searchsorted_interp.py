import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Position of every query in a sorted table (left side)."""
    def forward(self, table, q):
        return torch.searchsorted(table, q)

def get_inputs():
    return [torch.sort(torch.rand(65536)).values, torch.rand(32768)]
def get_init_inputs():
    return []
