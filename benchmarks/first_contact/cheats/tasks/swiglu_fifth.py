import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS, COLUMNS = 768, 2048


class Model(nn.Module):
    def forward(self, x):
        a, b = x.chunk(2, dim=-1)
        return F.silu(a) * b


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
