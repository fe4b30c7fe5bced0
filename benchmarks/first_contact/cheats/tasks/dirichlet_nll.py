import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, alpha, p):
        return -(torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1) + ((alpha - 1) * p.log()).sum(-1))


def get_inputs():
    return [torch.rand(4096, 16) * 8 + 3, torch.softmax(torch.randn(4096, 16), -1)]


def get_init_inputs():
    return []
