import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.up = nn.ConvTranspose1d(cin, cout, 4, stride=2, padding=1)

    def forward(self, x):
        return F.relu(self.up(x))


def get_inputs():
    return [torch.randn(4, 24, 300)]


def get_init_inputs():
    return [24, 20]
