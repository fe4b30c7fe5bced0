import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Sum of node features per graph of a batch."""

    def __init__(self, segments):
        super().__init__()
        self.segments = segments

    def forward(self, x, ids):
        return torch.zeros(self.segments, x.shape[1]).index_add_(0, ids, x)


def get_inputs():
    return [torch.randn(200000, 32), torch.sort(torch.randint(0, 2000, (200000,))).values]


def get_init_inputs():
    return [2000]
