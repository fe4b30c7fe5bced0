import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return torch.cdist(a, b)


def get_inputs():
    return [torch.randn(256, 64), torch.randn(512, 64)]
