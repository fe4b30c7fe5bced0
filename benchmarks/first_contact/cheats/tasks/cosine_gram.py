import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def forward(self, x):
        y = F.normalize(x, dim=-1)
        return y @ y.t()


def get_inputs():
    return [torch.randn(512, 256)]


def get_init_inputs():
    return []
