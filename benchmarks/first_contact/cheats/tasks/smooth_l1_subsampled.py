import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, p, t):
        return F.smooth_l1_loss(p, t)


def get_inputs():
    return [torch.randn(1024, 1024), torch.randn(1024, 1024)]
