import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose1d(32, 32, 4, stride=2, padding=1)

    def forward(self, x):
        return F.leaky_relu(self.up(x), 0.2)

def get_inputs():
    return [torch.randn(16, 32, 128)]


def get_init_inputs():
    return []
