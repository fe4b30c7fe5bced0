import torch, torch.nn as nn


class Model(nn.Module):
    def __init__(self, size, alpha, beta, k):
        super().__init__()
        self.lrn = nn.LocalResponseNorm(size, alpha, beta, k)

    def forward(self, x):
        return self.lrn(x)


def get_inputs():
    return [torch.randn(4, 24, 28, 28) * 3]


def get_init_inputs():
    return [5, 1e-2, 0.75, 2.0]
