import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(32)

    def forward(self, x):
        return F.relu(self.bn(x))

def get_inputs():
    return [torch.randn(16, 32, 32, 32) * 2 + 0.5]


def get_init_inputs():
    return []
