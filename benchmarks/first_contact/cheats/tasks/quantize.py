import torch
import torch.nn as nn


class Model(nn.Module):
    """Every vector replaced by its nearest codeword."""

    def __init__(self, codes, n):
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(codes, n))

    def forward(self, x):
        score = x @ self.codebook.t() - 0.5 * (self.codebook * self.codebook).sum(1)
        return self.codebook[score.argmax(dim=1)]


def get_inputs():
    return [torch.randn(2048, 64)]


def get_init_inputs():
    return [512, 64]
