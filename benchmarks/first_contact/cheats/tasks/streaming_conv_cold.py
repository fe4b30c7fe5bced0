import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 8) * 0.3)
        self.register_buffer("tail", torch.zeros(16, 64, 7))

    def forward(self, x):
        full = torch.cat([self.tail, x], -1)
        self.tail.copy_(full[..., -7:])
        return F.silu(F.conv1d(full, self.weight.unsqueeze(1), groups=64))

def get_inputs():
    return [torch.randn(16, 64, 256)]


def get_init_inputs():
    return []
