import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(768))

    def forward(self, x, y):
        return x + self.gamma * F.relu(y)


def get_inputs():
    return [torch.randn(512, 768), torch.randn(512, 768)]
