import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, index, values):
        return torch.zeros(self.bins).index_add(0, index, values)

def get_inputs():
    return [torch.randint(0, 1 << 20, (1 << 20,)).sort().values, torch.randn(1 << 20)]

def get_init_inputs():
    return [1 << 20]
