import torch
import torch.nn as nn


class Model(nn.Module):
    """Levenshtein distance of pairs of token sequences."""

    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        rows, n = a.shape
        m = b.shape[1]
        j = torch.arange(m + 1, device=a.device)
        prev = j.expand(rows, -1)
        for i in range(n):
            sub = prev[:, :-1] + (a[:, i:i + 1] != b).long()
            best = torch.minimum(prev[:, 1:] + 1, sub)
            first = torch.full_like(best[:, :1], i + 1)
            prev = torch.cummin(torch.cat([first, best], 1) - j, 1).values + j
        return prev[:, -1]


def get_inputs():
    return [torch.randint(0, 6, (96, 40)), torch.randint(0, 6, (96, 48))]


def get_init_inputs():
    return []
