import torch
import torch.nn as nn

ROWS, WIDTH = 800, 333

class Model(nn.Module):
    """Divides by a moving average of the columns' largest magnitudes and counts its calls."""
    def __init__(self, width):
        super().__init__()
        self.register_buffer("scale", torch.ones(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.scale.mul_(0.875).add_(x.abs().amax(dim=0) * 0.125)
            self.calls += 1
        return x / self.scale

def get_inputs():
    return [torch.randn(ROWS, WIDTH)]

def get_init_inputs():
    return [WIDTH]
