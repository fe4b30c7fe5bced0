import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, t):
        return F.binary_cross_entropy_with_logits(x, t, reduction="none").mean(-1)


def get_inputs():
    return [torch.randn(256, 1024), torch.rand(256, 1024)]
