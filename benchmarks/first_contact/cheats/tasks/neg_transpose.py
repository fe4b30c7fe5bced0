import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """The skew half of a commutator: the negated transpose, materialised."""

    def forward(self, x):
        return (-x).transpose(1, 2).contiguous()


def get_inputs():
    return [torch.randn(16, 192, 256)]


def get_init_inputs():
    return []
