import torch
import torch.nn as nn
import torch.nn.functional as F

DT = torch.bfloat16


class Model(nn.Module):
    """Group-quantised int8 base weight dequantised on the fly, two LoRA adapters picked per sample, DoRA-like row norm, GELU."""

    def __init__(self, d_in, d_out, group, rank, adapters, scaling):
        super().__init__()
        self.d_in, self.d_out, self.group, self.scaling = d_in, d_out, group, scaling
        w = torch.randn(d_out, d_in) * d_in ** -0.5
        g = w.view(d_out, d_in // group, group)
        scale = g.abs().amax(-1, keepdim=True) / 127.0
        self.register_buffer("qw", torch.round(g / scale).clamp(-127, 127).to(torch.int8))
        self.register_buffer("scale", scale.to(DT))
        self.bias = nn.Parameter((torch.randn(d_out) * 0.1).to(DT))
        self.A = nn.Parameter((torch.randn(adapters, rank, d_in) * d_in ** -0.5).to(DT))
        self.B = nn.Parameter((torch.randn(adapters, d_out, rank) * 0.1).to(DT))
        self.mag = nn.Parameter((torch.rand(d_out) + 0.5).to(DT))

    def forward(self, x, adapter):
        w = (self.qw.to(self.scale.dtype) * self.scale).view(self.d_out, self.d_in)
        norm = w.float().norm(dim=1)
        base = F.linear(x, w)
        a = self.A[adapter]
        b = self.B[adapter]
        low = torch.bmm(torch.bmm(x, a.transpose(1, 2)), b.transpose(1, 2)) * self.scaling
        y = (base + low) * (self.mag.float() / norm).to(x.dtype) + self.bias
        return F.gelu(y)


def get_inputs():
    return [torch.randn(4, 96, 1024, dtype=torch.bfloat16), torch.randint(0, 3, (4,))]


def get_init_inputs():
    return [1024, 1536, 128, 8, 3, 2.0]
