import torch
import torch.nn as nn


class Model(nn.Module):
    """Ridge-regularised normal equations for a batch of small systems."""

    def __init__(self, lam):
        super().__init__()
        self.lam = lam

    def forward(self, a, b):
        eye = torch.eye(a.shape[-1])
        return torch.linalg.solve(a.transpose(-1, -2) @ a + self.lam * eye, a.transpose(-1, -2) @ b)


def get_inputs():
    return [torch.randn(96, 64, 48), torch.randn(96, 64, 8)]


def get_init_inputs():
    return [1.0]
