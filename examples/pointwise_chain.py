import torch
import torch.nn as nn

ROWS = 4096
COLUMNS = 1024
SCALE = 1


class Model(nn.Module):
    """A gated residual update: six element-wise operators that eager runs as six passes over memory."""

    def __init__(self, columns: int):
        super().__init__()
        self.gain = nn.Parameter(1.0 + 0.1 * torch.randn(columns))
        self.shift = nn.Parameter(0.1 * torch.randn(columns))

    def forward(self, x: torch.Tensor, gate: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        y = x * self.gain + self.shift
        y = y * torch.sigmoid(gate)
        return torch.tanh(y) * 0.5 + residual


def get_inputs():
    return [torch.randn(ROWS * SCALE, COLUMNS) for _ in range(3)]


def get_init_inputs():
    return [COLUMNS]
