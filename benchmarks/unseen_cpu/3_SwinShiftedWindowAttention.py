import torch
import torch.nn as nn


class Model(nn.Module):
    """Swin block first half: LN, cyclic shift, window partition, attention with relative bias and shift mask, reverse, residual."""

    def __init__(self, dim, heads, res, window, shift):
        super().__init__()
        self.heads, self.res, self.w, self.shift = heads, res, window, shift
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.02)
        g = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        rel = (g[:, :, None] - g[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("index", rel[..., 0] * (2 * window - 1) + rel[..., 1])
        region = torch.zeros(1, res, res, 1)
        n = 0
        cuts = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
        for a in cuts:
            for b in cuts:
                region[:, a, b] = n
                n += 1
        ids = self.partition(region).squeeze(-1)
        self.register_buffer("mask", (ids[:, None, :] != ids[:, :, None]).float() * -100.0)

    def partition(self, x):
        B, H, W, C = x.shape
        w = self.w
        return x.view(B, H // w, w, W // w, w, C).permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, C)

    def reverse(self, x, B):
        w, r = self.w, self.res
        return x.view(B, r // w, r // w, w, w, -1).permute(0, 1, 3, 2, 4, 5).reshape(B, r, r, -1)

    def forward(self, x):
        B, L, C = x.shape
        n = self.w * self.w
        h = self.norm(x).view(B, self.res, self.res, C)
        h = torch.roll(h, (-self.shift, -self.shift), dims=(1, 2))
        h = self.partition(h)
        q, k, v = self.qkv(h).view(-1, n, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        att = (q * (C // self.heads) ** -0.5) @ k.transpose(-2, -1)
        att = att + self.table[self.index.view(-1)].view(n, n, self.heads).permute(2, 0, 1)
        nw = self.mask.shape[0]
        att = att.view(B, nw, self.heads, n, n) + self.mask[None, :, None]
        att = att.view(-1, self.heads, n, n).softmax(-1)
        h = self.proj((att @ v).transpose(1, 2).reshape(-1, n, C))
        h = torch.roll(self.reverse(h, B), (self.shift, self.shift), dims=(1, 2))
        return x + h.reshape(B, L, C)


def get_inputs():
    return [torch.randn(1, 56 * 56, 96)]


def get_init_inputs():
    return [96, 3, 56, 7, 3]
