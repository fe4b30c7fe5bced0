import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, adj, x):
        return torch.matmul(adj, x)


def get_inputs():
    return [(torch.rand(512, 512) < 0.01).float() / 5, torch.randn(512, 256)]
