import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, a, x):
        return torch.matrix_exp(a) @ x


def get_inputs():
    return [torch.randn(64, 16, 16) * 0.05, torch.randn(64, 16, 8)]
