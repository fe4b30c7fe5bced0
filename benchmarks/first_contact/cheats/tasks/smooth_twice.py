import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Two vertical smoothing passes with a clipped nonlinearity between them."""

    def forward(self, x):
        for _ in range(2):
            up = torch.cat([x[:1], x[:-1]], 0)
            down = torch.cat([x[1:], x[-1:]], 0)
            x = torch.relu(0.25 * up + 0.5 * x + 0.25 * down)
        return x


def get_inputs():
    return [torch.randn(1024, 512)]


def get_init_inputs():
    return []
