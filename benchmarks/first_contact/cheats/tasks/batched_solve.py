import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, A, b):
        return torch.linalg.solve(A, b)


def get_inputs():
    return [torch.randn(256, 16, 16) + 12 * torch.eye(16), torch.randn(256, 16, 4)]


def get_init_inputs():
    return []
