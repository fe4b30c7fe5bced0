import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """3x3 convolution and SiLU."""
    def __init__(self, ci, co):
        super().__init__()
        self.conv = nn.Conv2d(ci, co, 3, padding=1)
    def forward(self, x):
        return F.silu(self.conv(x))

def get_inputs():
    return [torch.randn(4, 32, 56, 56)]
def get_init_inputs():
    return [32, 64]
