import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(64, 64)

    def forward(self, x, h0):
        out, h = self.gru(x, h0)
        return out


def get_inputs():
    return [torch.randn(32, 16, 64), torch.zeros(1, 16, 64)]
