import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Linear layer with uint8 activations and int8 weights (kept as a buffer), dequantised output."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.register_buffer("qweight", torch.randn(out_features, in_features).mul(16).round().clamp(-127, 127).to(torch.int8))
        self.register_buffer("scale", torch.rand(out_features) * 0.01 + 0.001)

    def forward(self, x):
        return F.linear(x.float(), self.qweight.float()) * self.scale


def get_inputs():
    return [torch.randint(0, 256, (32, 1024), dtype=torch.uint8)]


def get_init_inputs():
    return [1024, 512]
