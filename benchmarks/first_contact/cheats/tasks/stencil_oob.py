import torch, torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))

    def forward(self, x):
        p = F.pad(x, (1, 1))
        return p[..., :-2] * self.w[0] + p[..., 1:-1] * self.w[1] + p[..., 2:] * self.w[2]

def get_inputs():
    return [torch.randn(512, 2048)]

def get_init_inputs():
    return []
