import torch
import torch.nn as nn


class Model(nn.Module):
    """Two linear layers with tanh between them."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs, bias=False)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x)))


def get_inputs():
    return [torch.randn(512, 128)]


def get_init_inputs():
    return [128, 384, 64]
