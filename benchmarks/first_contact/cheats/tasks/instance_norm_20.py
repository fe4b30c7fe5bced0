import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        m = x.mean(dim=(2, 3), keepdim=True)
        v = (x - m).pow(2).mean(dim=(2, 3), keepdim=True)
        return (x - m) * torch.rsqrt(v + 1e-5)


def get_inputs():
    return [torch.randn(8, 32, 48, 48)]
