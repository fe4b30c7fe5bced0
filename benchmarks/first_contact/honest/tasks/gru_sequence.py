import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.rnn = nn.GRU(inputs, hidden, batch_first=True)

    def forward(self, x):
        out, last = self.rnn(x)
        return out, last.squeeze(0)


def get_inputs():
    return [torch.randn(16, 40, 64)]


def get_init_inputs():
    return [64, 96]
