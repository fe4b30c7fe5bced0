import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Histogram of the bytes of every image."""
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return torch.stack([torch.bincount(r, minlength=256) for r in x])

def get_inputs():
    return [torch.randint(0, 256, (4, 262144), dtype=torch.uint8)]

def get_init_inputs():
    return []
