import torch
import torch.nn as nn


class Model(nn.Module):
    """Sums the node features of each graph of a batch (seg is sorted)."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, seg, src):
        out = torch.zeros(self.size, src.shape[1])
        return out.index_add_(0, seg, src)


def get_inputs():
    return [torch.randint(0, 4000, (40000,)).sort().values, torch.randn(40000, 64)]


def get_init_inputs():
    return [4000]
