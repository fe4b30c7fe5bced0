import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, a, b):
        return torch.linalg.solve(a, b)


def get_inputs():
    return [torch.randn(128, 16, 16) + 12 * torch.eye(16), torch.randn(128, 16, 4)]
