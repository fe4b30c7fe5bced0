import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(48, 64, batch_first=True)

    def forward(self, x, h0):
        y, h = self.gru(x, h0)
        return y

def get_inputs():
    return [torch.randn(32, 24, 48), torch.zeros(1, 32, 64)]


def get_init_inputs():
    return []
