import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Decoder of a sparse autoencoder: features @ dictionary."""
    def __init__(self, k, n):
        super().__init__()
        self.dictionary = nn.Parameter(torch.randn(k, n) / k ** 0.5)

    def forward(self, x):
        return x @ self.dictionary


def get_inputs():
    return [torch.relu(torch.randn(128, 1024) - 2.0)]


def get_init_inputs():
    return [1024, 512]
