import torch
import torch.nn as nn

COUNT, BINS = 150001, 1000

class Model(nn.Module):
    """How many of the integers fall into each residue class."""
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, x):
        index = torch.remainder(x, self.bins)
        counts = torch.zeros(self.bins, dtype=torch.int64)
        return counts.scatter_add_(0, index, torch.ones_like(index))

def get_inputs():
    return [torch.randint(-10**9, 10**9, (COUNT,))]

def get_init_inputs():
    return [BINS]
