import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """One WaveNet block: dilated causal convolutions, gate, 1x1 projections to residual and skip."""

    def __init__(self, channels, skip, dilation):
        super().__init__()
        self.dilation = dilation
        self.filter = nn.Conv1d(channels, channels, 2, dilation=dilation)
        self.gate = nn.Conv1d(channels, channels, 2, dilation=dilation)
        self.residual = nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, skip, 1)

    def forward(self, x):
        p = F.pad(x, (self.dilation, 0))
        z = torch.tanh(self.filter(p)) * torch.sigmoid(self.gate(p))
        return x + self.residual(z), self.skip(z)


def get_inputs():
    return [torch.randn(4, 32, 1024)]


def get_init_inputs():
    return [32, 48, 8]
