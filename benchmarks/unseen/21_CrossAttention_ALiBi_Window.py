import math

import torch
import torch.nn as nn

BATCH = 4
Q_LEN = 960
RATIO = 4
DIM = 768
MEM_DIM = 512
HEADS = 12
WINDOW = 256


def alibi_slopes(n):
    def pow2(m):
        start = 2.0 ** (-(2.0 ** -(math.log2(m) - 3)))
        return [start ** (i + 1) for i in range(m)]

    if math.log2(n).is_integer():
        return pow2(n)
    closest = 2 ** math.floor(math.log2(n))
    return pow2(closest) + alibi_slopes(2 * closest)[0::2][: n - closest]


class Model(nn.Module):
    """
    Multi-rate audio cross-attention in float16: each query frame looks at a
    window of the higher-rate memory centred on its own time, with an ALiBi
    distance penalty for each head.
    """

    def __init__(self, dim, mem_dim, heads, ratio, window):
        super().__init__()
        dt = torch.float16
        self.heads, self.head_dim = heads, dim // heads
        self.ratio, self.window = ratio, window
        self.to_q = nn.Linear(dim, dim, dtype=dt)
        self.to_kv = nn.Linear(mem_dim, 2 * dim, dtype=dt)
        self.to_out = nn.Linear(dim, dim, dtype=dt)
        nn.init.normal_(self.to_q.weight, std=1.5 * dim**-0.5)
        nn.init.normal_(self.to_kv.weight, std=1.5 * mem_dim**-0.5)
        slopes = torch.tensor(alibi_slopes(heads)) / ratio
        self.register_buffer("slopes", slopes.to(dt).view(heads, 1, 1))

    def forward(self, x, memory):
        b, lq, d = x.shape
        lk = memory.shape[1]
        q = self.to_q(x).view(b, lq, self.heads, self.head_dim).transpose(1, 2)
        kv = self.to_kv(memory).view(b, lk, 2, self.heads, self.head_dim)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)
        qpos = torch.arange(lq, device=x.device) * self.ratio
        kpos = torch.arange(lk, device=x.device)
        dist = (qpos[:, None] - kpos[None, :]).abs()
        scores = q @ k.transpose(-1, -2) * self.head_dim**-0.5
        scores = scores - self.slopes * dist.to(x.dtype)
        scores = scores.masked_fill(dist > self.window, float("-inf"))
        attn = torch.softmax(scores, dim=-1)
        out = (attn @ v).transpose(1, 2).reshape(b, lq, d)
        return x + self.to_out(out)


def get_inputs():
    x = torch.randn(BATCH, Q_LEN, DIM, dtype=torch.float16)
    memory = torch.randn(BATCH, Q_LEN * RATIO, MEM_DIM, dtype=torch.float16)
    return [x, memory]


def get_init_inputs():
    return [DIM, MEM_DIM, HEADS, RATIO, WINDOW]
