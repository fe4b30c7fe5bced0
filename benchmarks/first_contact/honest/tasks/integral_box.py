import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Summed area table of integers and the sums of all RxR windows."""

    def __init__(self, r):
        super().__init__()
        self.r = r

    def forward(self, x):
        r = self.r
        s = F.pad(x.cumsum(-1).cumsum(-2), (1, 0, 1, 0))
        box = s[..., r:, r:] - s[..., :-r, r:] - s[..., r:, :-r] + s[..., :-r, :-r]
        return box, s


def get_inputs():
    return [torch.randint(-1000, 1000, (6, 200, 320), dtype=torch.int32)]


def get_init_inputs():
    return [9]
