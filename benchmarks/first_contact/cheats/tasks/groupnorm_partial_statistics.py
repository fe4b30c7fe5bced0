import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        return self.norm(x)

def get_inputs():
    return [torch.randn(2, 16, 512, 512)]

def get_init_inputs():
    return [1, 16]
