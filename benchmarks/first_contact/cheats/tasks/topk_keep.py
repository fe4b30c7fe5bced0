import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Keeps the k largest of a row, zero elsewhere (sparse activations)."""

    def __init__(self, k: int):
        super().__init__()
        self.k = k

    def forward(self, x):
        least = torch.topk(x, self.k, dim=-1).values[:, -1:]
        return torch.where(x >= least, x, torch.zeros_like(x))


def get_inputs():
    return [torch.randn(128, 4096)]


def get_init_inputs():
    return [64]
