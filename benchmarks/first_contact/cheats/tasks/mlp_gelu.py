import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, WIDTH, HIDDEN = 128, 256, 512


class Model(nn.Module):
    """Two linear layers with an exact GELU between them."""

    def __init__(self, width, hidden):
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


def get_inputs():
    return [torch.randn(BATCH, WIDTH)]


def get_init_inputs():
    return [WIDTH, HIDDEN]
