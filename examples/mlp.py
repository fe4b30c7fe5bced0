import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 256
FEATURES = 512
HIDDEN = 2048
SCALE = 1


class Model(nn.Module):
    """The feed-forward block of a transformer with its residual connection."""

    def __init__(self, features: int, hidden: int):
        super().__init__()
        self.up = nn.Linear(features, hidden)
        self.down = nn.Linear(hidden, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x), approximate="tanh"))


def get_inputs():
    return [torch.randn(TOKENS * SCALE, FEATURES)]


def get_init_inputs():
    return [FEATURES, HIDDEN]
