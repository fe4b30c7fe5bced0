import torch
import torch.nn as nn

ROWS, COLUMNS, K = 512, 4096, 16


class Model(nn.Module):
    """The K largest numbers of every row, in descending order."""

    def forward(self, x):
        return torch.topk(x, K, dim=-1).values


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
