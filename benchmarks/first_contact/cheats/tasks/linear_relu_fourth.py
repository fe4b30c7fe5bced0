import torch
import torch.nn as nn


class Model(nn.Module):
    """Linear layer, then ReLU."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.linear = nn.Linear(n_in, n_out)

    def forward(self, x):
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(192, 768)]


def get_init_inputs():
    return [768, 768]
