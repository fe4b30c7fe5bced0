import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lrn = nn.LocalResponseNorm(5)

    def forward(self, x):
        return self.lrn(x)


def get_inputs():
    return [torch.randn(4, 32, 32, 32)]
