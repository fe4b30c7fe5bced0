import torch
import torch.nn as nn


class Model(nn.Module):
    """Mean of the rows of every segment; the segment numbers are unsorted and some segments may be empty."""

    def __init__(self, segments):
        super().__init__()
        self.segments = segments

    def forward(self, x, segment):
        total = x.new_zeros(self.segments, x.shape[1]).index_add_(0, segment, x)
        count = torch.bincount(segment, minlength=self.segments)
        return total / count.clamp(min=1)[:, None]


def get_inputs():
    return [torch.randn(30000, 40), torch.randint(0, 900, (30000,))]


def get_init_inputs():
    return [900]
