import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a):
        return torch.linalg.cholesky(a)


def get_inputs():
    x = torch.randn(64, 48, 96)
    return [x @ x.transpose(1, 2) / 96 + torch.eye(48)]
