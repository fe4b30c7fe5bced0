import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.up = nn.ConvTranspose2d(cin, cout, 4, stride=2, padding=1)

    def forward(self, x):
        return self.up(x)


def get_inputs():
    return [torch.randn(4, 64, 24, 24)]


def get_init_inputs():
    return [64, 32]
