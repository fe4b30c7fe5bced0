import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        x = x - x.mean(1, keepdim=True)
        s = torch.fft.rfft(x, n=2048)
        r = torch.fft.irfft(s * s.conj(), n=2048)[:, :64]
        return r / (r[:, :1] + 1e-8)


def get_inputs():
    return [torch.randn(64, 1024)]


def get_init_inputs():
    return []
