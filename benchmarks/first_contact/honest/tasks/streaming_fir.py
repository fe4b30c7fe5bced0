import torch, torch.nn as nn, torch.nn.functional as F


class Model(nn.Module):
    """FIR filter over a stream: the last taps-1 samples of each channel are kept in a buffer between calls."""

    def __init__(self, channels, taps):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, taps) / taps ** 0.5)
        self.register_buffer("history", torch.zeros(channels, taps - 1))

    def forward(self, x):
        full = torch.cat([self.history, x], 1)
        y = F.conv1d(full[None], self.weight, groups=x.shape[0])[0]
        self.history.copy_(full[:, x.shape[1]:])
        return y


def get_inputs():
    return [torch.randn(24, 2048)]


def get_init_inputs():
    return [24, 33]
