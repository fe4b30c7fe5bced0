import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)


def get_inputs():
    return [torch.randn(4096, 512)]
