import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, kernel, stride, padding):
        super().__init__()
        self.args = (kernel, stride, padding)

    def forward(self, x):
        k, s, p = self.args
        return F.max_pool2d(x, k, s, p, return_indices=True)


def get_inputs():
    return [torch.randn(8, 32, 64, 64)]


def get_init_inputs():
    return [3, 2, 1]
