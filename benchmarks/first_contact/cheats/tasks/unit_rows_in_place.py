import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, a, b):
        return F.normalize(a, dim=1) @ F.normalize(b, dim=1).t() / 0.07

def get_inputs():
    return [torch.randn(256, 64), torch.randn(256, 64)]


def get_init_inputs():
    return []
