import torch
import torch.nn as nn
import torch.nn.functional as F

K = 12


class Model(nn.Module):
    """Which elements are among the K largest of their row (ties included), and the sum of those."""

    def forward(self, x):
        kth = torch.topk(x, K, dim=-1).values[:, -1:]
        mask = x >= kth
        return mask, torch.where(mask, x, torch.zeros_like(x)).sum(-1)


def get_inputs():
    return [torch.randn(384, 700)]


def get_init_inputs():
    return []
