import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """The last state of a gated linear recurrence."""

    def forward(self, g, x):
        a = torch.exp(-g.abs())
        h = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            h = a[:, t] * h + x[:, t]
        return h


def get_inputs():
    return [torch.randn(16, 256, 256), torch.randn(16, 256, 256)]


def get_init_inputs():
    return []
