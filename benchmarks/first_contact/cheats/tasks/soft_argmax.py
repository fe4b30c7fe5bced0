import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, beta=4.0):
        super().__init__()
        self.beta = beta

    def forward(self, h):
        B, K, H, W = h.shape
        p = torch.softmax(self.beta * h.flatten(2), -1).view(B, K, H, W)
        y = (p.sum(3) * torch.linspace(0, 1, H)).sum(2)
        x = (p.sum(2) * torch.linspace(0, 1, W)).sum(2)
        return torch.stack([x, y], -1)


def get_inputs():
    return [torch.randn(16, 17, 32, 32)]


def get_init_inputs():
    return [4.0]
