import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return a * torch.sigmoid(b) + b


def get_inputs():
    return [torch.randn(768, 768), torch.randn(768, 768)]
