import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("q", torch.tensor([0.1, 0.5, 0.9]))

    def forward(self, x):
        return torch.quantile(x, self.q, dim=1).t()


def get_inputs():
    return [torch.rand(64, 512)]


def get_init_inputs():
    return []
