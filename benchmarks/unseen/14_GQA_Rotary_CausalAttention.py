import math

import torch
import torch.nn as nn

BATCH = 2
SEQ = 1920
DIM = 3072
HEADS = 24
KV_HEADS = 8
HEAD_DIM = 128
ROPE_THETA = 500000.0


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class Model(nn.Module):
    """
    Llama-style causal self-attention in bfloat16 with rotary embeddings and
    grouped key/value heads; the softmax is in float32.
    """

    def __init__(self, dim, heads, kv_heads, head_dim, seq, theta):
        super().__init__()
        dt = torch.bfloat16
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q_proj = nn.Linear(dim, heads * head_dim, bias=False, dtype=dt)
        self.k_proj = nn.Linear(dim, kv_heads * head_dim, bias=False, dtype=dt)
        self.v_proj = nn.Linear(dim, kv_heads * head_dim, bias=False, dtype=dt)
        self.o_proj = nn.Linear(heads * head_dim, dim, bias=False, dtype=dt)
        nn.init.normal_(self.q_proj.weight, std=1.4 * dim**-0.5)
        nn.init.normal_(self.k_proj.weight, std=1.4 * dim**-0.5)
        nn.init.normal_(self.v_proj.weight, std=dim**-0.5)
        nn.init.normal_(self.o_proj.weight, std=1.5 * (heads * head_dim) ** -0.5)
        inv_freq = 1.0 / (theta ** (torch.arange(0, head_dim, 2).float() / head_dim))
        freqs = torch.outer(torch.arange(seq).float(), inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer("cos", emb.cos().to(dt))
        self.register_buffer("sin", emb.sin().to(dt))
        mask = torch.full((seq, seq), float("-inf")).triu(1)
        self.register_buffer("mask", mask.to(dt))

    def forward(self, x):
        b, s, _ = x.shape
        q = self.q_proj(x).view(b, s, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, s, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, s, self.kv_heads, self.head_dim).transpose(1, 2)
        q = q * self.cos + rotate_half(q) * self.sin
        k = k * self.cos + rotate_half(k) * self.sin
        rep = self.heads // self.kv_heads
        k = k.repeat_interleave(rep, dim=1)
        v = v.repeat_interleave(rep, dim=1)
        att = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.head_dim)
        att = att + self.mask
        att = torch.softmax(att, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.matmul(att, v).transpose(1, 2).reshape(b, s, -1)
        return self.o_proj(out)


def get_inputs():
    return [torch.randn(BATCH, SEQ, DIM, dtype=torch.bfloat16)]


def get_init_inputs():
    return [DIM, HEADS, KV_HEADS, HEAD_DIM, SEQ, ROPE_THETA]
