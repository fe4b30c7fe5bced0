import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, q, k):
        s = torch.matmul(q, k.transpose(-1, -2)) * (q.shape[-1] ** -0.5)
        return torch.softmax(s, dim=-1)


def get_inputs():
    return [torch.randn(8, 256, 64), torch.randn(8, 256, 64)]
