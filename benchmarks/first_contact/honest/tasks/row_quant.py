import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Symmetric int8 quantisation by rows: codes and scales."""

    def forward(self, x):
        scale = (x.abs().amax(-1, keepdim=True) / 127.0).clamp_min(1e-8)
        return torch.round(x / scale).clamp(-127, 127).to(torch.int8), scale


def get_inputs():
    return [torch.randn(512, 800)]


def get_init_inputs():
    return []
