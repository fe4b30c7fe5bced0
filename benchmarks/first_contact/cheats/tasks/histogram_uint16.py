import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, x):
        return torch.bincount(x, minlength=self.bins)[: self.bins]


def get_inputs():
    return [torch.randint(0, 256, (1000000,))]


def get_init_inputs():
    return [256]
