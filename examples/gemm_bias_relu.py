import torch
import torch.nn as nn

ROWS = 512
IN_FEATURES = 1024
OUT_FEATURES = 1024
SCALE = 1


class Model(nn.Module):
    """A linear layer with ReLU."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(ROWS * SCALE, IN_FEATURES)]


def get_init_inputs():
    return [IN_FEATURES, OUT_FEATURES]
