import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.rnn = nn.GRU(d, h, batch_first=True)

    def forward(self, x):
        y, _ = self.rnn(x)
        return y


def get_inputs():
    return [torch.randn(16, 48, 64)]


def get_init_inputs():
    return [64, 96]
