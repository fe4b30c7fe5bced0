import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, p, t):
        d = (p - t).abs()
        return torch.where(d < 1.0, 0.5 * d * d, d - 0.5).mean(dim=1)


def get_inputs():
    return [torch.randn(512, 1024), torch.randn(512, 1024)]
