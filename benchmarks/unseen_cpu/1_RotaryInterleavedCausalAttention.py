import math
import torch
import torch.nn as nn


class Model(nn.Module):
    """GPT-J style attention: fused QKV, interleaved-pair rotary on part of the head, causal softmax, out projection."""

    def __init__(self, dim, heads, rotary_dim, max_len):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.rotary_dim = rotary_dim
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=True)
        inv = 1.0 / (10000 ** (torch.arange(0, rotary_dim, 2).float() / rotary_dim))
        ang = torch.arange(max_len).float()[:, None] * inv[None, :]
        self.register_buffer("cos", ang.cos())
        self.register_buffer("sin", ang.sin())

    def rotate(self, x, positions):
        # x: (B, H, T, D)
        rot, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim:]
        cos = self.cos[positions][:, None]
        sin = self.sin[positions][:, None]
        even, odd = rot[..., 0::2], rot[..., 1::2]
        rot = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
        return torch.cat((rot, rest), dim=-1)

    def forward(self, x, positions):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q = self.rotate(q, positions)
        k = self.rotate(k, positions)
        att = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        mask = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        att = att.masked_fill(~mask, float("-inf")).softmax(-1)
        y = (att @ v).transpose(1, 2).reshape(B, T, C)
        return self.out(y)


def get_inputs():
    return [torch.randn(2, 192, 384), torch.randint(0, 512, (2, 192))]


def get_init_inputs():
    return [384, 6, 32, 512]
