import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a):
        return torch.matrix_exp(a)


def get_inputs():
    return [torch.randn(64, 24, 24) * 0.2]
