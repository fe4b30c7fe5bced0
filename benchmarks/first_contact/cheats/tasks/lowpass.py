import torch
import torch.nn as nn

ROWS = 128
N = 2048
KEEP = 6


class Model(nn.Module):
    """Spectral filter: rfft, multiplication by a mask, irfft."""

    def __init__(self, n, keep):
        super().__init__()
        mask = torch.zeros(n // 2 + 1)
        mask[:keep] = 1
        self.register_buffer("mask", mask)

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.mask, n=x.shape[-1])


def get_inputs():
    return [torch.randn(ROWS, N)]


def get_init_inputs():
    return [N, KEEP]
