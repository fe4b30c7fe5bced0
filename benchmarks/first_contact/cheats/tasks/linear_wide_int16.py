import torch
import torch.nn as nn


class Model(nn.Module):
    """A wide linear layer applied to a few rows (decoding)."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.fc = nn.Linear(in_features, out_features)

    def forward(self, x):
        return self.fc(x)


def get_inputs():
    return [torch.randn(4, 4096)]


def get_init_inputs():
    return [4096, 1536]
