import torch
import torch.nn as nn


class Model(nn.Module):
    """Linear layer without bias on tokens whose loudness differs by many decades."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.proj = nn.Linear(n_in, n_out, bias=False)

    def forward(self, x):
        return self.proj(x)


def get_inputs():
    loud = 10.0 ** (torch.rand(384, 1) * 9.0 - 7.0)
    return [torch.randn(384, 512) * loud]


def get_init_inputs():
    return [512, 512]
