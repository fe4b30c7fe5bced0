import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """The score of the best path."""

    def __init__(self, states):
        super().__init__()
        self.transition = nn.Parameter(0.2 * torch.rand(states, states))

    def forward(self, e):
        s = e[:, 0]
        for t in range(1, e.shape[1]):
            s = (s[:, :, None] + self.transition).amax(1) + e[:, t]
        return s


def get_inputs():
    return [3 * torch.randn(16, 64, 64)]


def get_init_inputs():
    return [64]
