import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(32, 64, batch_first=True)

    def forward(self, x):
        out, h = self.rnn(x)
        return h[0]


def get_inputs():
    return [torch.randn(16, 128, 32)]
