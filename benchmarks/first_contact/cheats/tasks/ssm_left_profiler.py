import torch
import torch.nn as nn


class Model(nn.Module):
    """Gated diagonal recurrence, one step at a time."""

    def __init__(self, d):
        super().__init__()
        self.decay = nn.Parameter(torch.rand(d))
        self.gate = nn.Parameter(torch.randn(d))

    def forward(self, x):
        a = torch.sigmoid(self.decay)
        h = torch.zeros_like(x[:, 0])
        ys = []
        for t in range(x.shape[1]):
            z = torch.sigmoid(x[:, t] * self.gate)
            h = a * h + (1 - a) * z * x[:, t]
            ys.append(torch.tanh(h))
        return torch.stack(ys, 1)


def get_inputs():
    return [torch.randn(8, 64, 128)]


def get_init_inputs():
    return [128]
