import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.t = temperature

    def forward(self, x):
        lp = torch.log_softmax(x / self.t, dim=-1)
        return -(lp.exp() * lp).sum(-1)


def get_inputs():
    return [torch.randn(512, 1000)]


def get_init_inputs():
    return [0.7]
