import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """RMS norm, times SiLU of a gate (as in Mamba-2)."""

    def __init__(self, features: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.eps = eps

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        rms = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * rms * self.weight * F.silu(gate)


def get_inputs():
    return [torch.randn(8, 96, 512), torch.randn(8, 96, 512)]


def get_init_inputs():
    return [512]
