import torch
import torch.nn as nn


class Model(nn.Module):
    """Sums of rows with the same segment number (sorted numbers)."""

    def __init__(self, segments):
        super().__init__()
        self.segments = segments

    def forward(self, x, ids):
        out = torch.zeros(self.segments, x.shape[1])
        return out.index_add_(0, ids, x)


def get_inputs():
    return [torch.randn(60000, 16), torch.sort(torch.randint(0, 3000, (60000,))).values]


def get_init_inputs():
    return [3000]
