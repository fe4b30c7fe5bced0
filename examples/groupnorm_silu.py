import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 32
CHANNELS = 128
SIZE = 64
GROUPS = 32
SCALE = 1


class Model(nn.Module):
    """The normalisation of a diffusion model's residual block."""

    def __init__(self, groups: int, channels: int):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(x))


def get_inputs():
    return [torch.randn(BATCH * SCALE, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [GROUPS, CHANNELS]
