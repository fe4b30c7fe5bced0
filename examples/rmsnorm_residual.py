import torch
import torch.nn as nn

BATCH = 16
TOKENS = 512
FEATURES = 1024
SCALE = 1


class Model(nn.Module):
    """Pre-norm of a decoder layer: the residual stream is updated, then normalised by its root mean square."""

    def __init__(self, features: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.eps = eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = x + residual
        variance = hidden.pow(2).mean(dim=-1, keepdim=True)
        return hidden * torch.rsqrt(variance + self.eps) * self.weight, hidden


def get_inputs():
    return [torch.randn(BATCH * SCALE, TOKENS, FEATURES), torch.randn(BATCH * SCALE, TOKENS, FEATURES)]


def get_init_inputs():
    return [FEATURES]
