import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Cosine similarity of matching rows."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, a, b):
        return F.cosine_similarity(a, b, dim=1, eps=self.eps)


def get_inputs():
    return [torch.randn(700, 513), torch.randn(700, 513)]


def get_init_inputs():
    return [1e-8]
