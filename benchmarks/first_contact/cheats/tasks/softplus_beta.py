import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, beta):
        super().__init__()
        self.beta = beta

    def forward(self, x):
        return F.softplus(x, beta=self.beta)


def get_inputs():
    return [torch.randn(512, 1024)]


def get_init_inputs():
    return [2.0]
