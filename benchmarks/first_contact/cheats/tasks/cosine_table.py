import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.keys = nn.Parameter(torch.randn(n, d))

    def forward(self, x):
        return F.cosine_similarity(x[:, None], self.keys[None], dim=-1)


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return [128, 64]
