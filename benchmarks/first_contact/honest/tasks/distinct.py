import torch
import torch.nn as nn


class Model(nn.Module):
    """How many different keys each row has, and which elements are first occurrences of their key."""

    def forward(self, keys):
        s, order = torch.sort(keys, dim=1, stable=True)
        new = torch.cat([torch.ones_like(s[:, :1], dtype=torch.bool), s[:, 1:] != s[:, :-1]], 1)
        first = torch.zeros_like(new).scatter(1, order, new)
        return new.sum(1), first


def get_inputs():
    return [torch.randint(0, 700, (64, 1024)) * 1_000_003]


def get_init_inputs():
    return []
