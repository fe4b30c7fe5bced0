import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return F.avg_pool3d(x, 3, stride=1, padding=1)

def get_inputs():
    return [torch.randn(2, 8, 16, 32, 32)]

def get_init_inputs():
    return []
