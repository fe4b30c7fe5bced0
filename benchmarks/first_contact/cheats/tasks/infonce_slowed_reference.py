import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """InfoNCE loss of two views."""

    def __init__(self, tau):
        super().__init__()
        self.tau = tau

    def forward(self, a, b):
        a = F.normalize(a, dim=1)
        b = F.normalize(b, dim=1)
        s = a @ b.t() / self.tau
        y = torch.arange(a.shape[0])
        return F.cross_entropy(s, y)


def get_inputs():
    return [torch.randn(384, 96), torch.randn(384, 96)]


def get_init_inputs():
    return [0.2]
