import torch
import torch.nn as nn
import torch.nn.functional as F

DT = torch.bfloat16


class Model(nn.Module):
    """Pre-norm decoder layer in bfloat16: RMSNorm in float32, half-split rotary, grouped KV heads, causal SDPA, SwiGLU."""

    def __init__(self, dim, heads, kv_heads, inter, max_len):
        super().__init__()
        self.h, self.kv, self.d = heads, kv_heads, dim // heads
        lin = lambda i, o: nn.Linear(i, o, bias=False, dtype=DT)
        self.q, self.k, self.v = lin(dim, dim), lin(dim, kv_heads * self.d), lin(dim, kv_heads * self.d)
        self.o = lin(dim, dim)
        self.gate, self.up, self.down = lin(dim, inter), lin(dim, inter), lin(inter, dim)
        self.n1 = nn.Parameter((torch.rand(dim) + 0.5).to(DT))
        self.n2 = nn.Parameter((torch.rand(dim) + 0.5).to(DT))
        inv = 1.0 / (500000.0 ** (torch.arange(0, self.d, 2).float() / self.d))
        ang = torch.outer(torch.arange(max_len).float(), inv)
        ang = torch.cat((ang, ang), -1)
        self.register_buffer("cos", ang.cos())
        self.register_buffer("sin", ang.sin())

    def rms(self, x, w):
        f = x.float()
        f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-5)
        return w * f.to(x.dtype)

    def rope(self, x, T):
        a, b = x.chunk(2, -1)
        return x * self.cos[:T].to(x.dtype) + torch.cat((-b, a), -1) * self.sin[:T].to(x.dtype)

    def forward(self, x):
        B, T, C = x.shape
        y = self.rms(x, self.n1)
        q = self.rope(self.q(y).view(B, T, self.h, self.d).transpose(1, 2), T)
        k = self.rope(self.k(y).view(B, T, self.kv, self.d).transpose(1, 2), T)
        v = self.v(y).view(B, T, self.kv, self.d).transpose(1, 2)
        k = k.repeat_interleave(self.h // self.kv, dim=1)
        v = v.repeat_interleave(self.h // self.kv, dim=1)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(B, T, C))
        y = self.rms(x, self.n2)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def get_inputs():
    return [torch.randn(1, 256, 512, dtype=torch.bfloat16)]


def get_init_inputs():
    return [512, 8, 2, 1376, 512]
