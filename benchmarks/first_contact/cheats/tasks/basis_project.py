import torch
import torch.nn as nn


class Model(nn.Module):
    """Projection onto an orthogonal basis of signs."""

    def __init__(self, n):
        super().__init__()
        h = torch.ones(1, 1)
        while h.shape[0] < n:
            h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
        self.register_buffer("basis", h.contiguous())

    def forward(self, x):
        return x @ self.basis


def get_inputs():
    return [torch.randn(2048, 256)]


def get_init_inputs():
    return [256]
