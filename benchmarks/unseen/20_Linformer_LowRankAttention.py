import torch
import torch.nn as nn

BATCH = 8
SEQ = 4096
DIM = 768
HEADS = 12
RANK = 256


class Model(nn.Module):
    """
    Linformer self-attention in bfloat16: keys and values are projected along
    the sequence to a fixed rank before the softmax attention.
    """

    def __init__(self, dim, heads, seq, rank):
        super().__init__()
        dt = torch.bfloat16
        self.heads = heads
        self.head_dim = dim // heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False, dtype=dt)
        self.proj_k = nn.Parameter((torch.randn(seq, rank) * seq**-0.5).to(dt))
        self.proj_v = nn.Parameter((torch.randn(seq, rank) * seq**-0.5).to(dt))
        self.to_out = nn.Linear(dim, dim, bias=True, dtype=dt)
        nn.init.normal_(self.to_qkv.weight, std=1.4 * dim**-0.5)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        k = torch.einsum("bnd,nr->brd", k, self.proj_k)
        v = torch.einsum("bnd,nr->brd", v, self.proj_v)
        q = q.reshape(b, n, self.heads, self.head_dim).transpose(1, 2)
        k = k.reshape(b, -1, self.heads, self.head_dim).transpose(1, 2)
        v = v.reshape(b, -1, self.heads, self.head_dim).transpose(1, 2)
        scores = torch.einsum("bhnd,bhrd->bhnr", q, k) * self.head_dim**-0.5
        attn = scores.softmax(dim=-1)
        out = torch.einsum("bhnr,bhrd->bhnd", attn, v)
        out = out.transpose(1, 2).reshape(b, n, d)
        return self.to_out(out)


def get_inputs():
    return [torch.randn(BATCH, SEQ, DIM, dtype=torch.bfloat16)]


def get_init_inputs():
    return [DIM, HEADS, SEQ, RANK]
