import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.up = nn.ConvTranspose2d(cin, cout, 4, 2, 1)

    def forward(self, x):
        return F.silu(self.up(x))

def get_inputs():
    return [torch.randn(4, 32, 48, 48)]

def get_init_inputs():
    return [32, 32]
