import torch
import torch.nn as nn

DT = torch.float16


class Model(nn.Module):
    """One decode step on an int8 KV cache: per-token scales, appended new token, grouped queries by einsum, length mask, ALiBi."""

    def __init__(self, heads, kv_heads, dim):
        super().__init__()
        self.h, self.kv, self.d = heads, kv_heads, dim
        slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1).float() / heads)
        self.register_buffer("slopes", slopes.view(kv_heads, heads // kv_heads))
        self.o = nn.Linear(heads * dim, heads * dim, bias=False, dtype=DT)

    def forward(self, q, k_new, v_new, kq, ks, vq, vs, lens):
        # q (B,H,D); k_new (B,KV,D); kq int8 (B,KV,S,D); ks (B,KV,S,1)
        B, _, D = q.shape
        S = kq.shape[2]
        k = kq.to(q.dtype) * ks
        v = vq.to(q.dtype) * vs
        at = lens.view(B, 1, 1, 1).expand(-1, self.kv, 1, D)
        k = k.scatter(2, at, k_new.unsqueeze(2))
        v = v.scatter(2, at, v_new.unsqueeze(2))
        qg = q.view(B, self.kv, self.h // self.kv, D) * (D ** -0.5)
        s = torch.einsum("bkgd,bksd->bkgs", qg, k).float()
        pos = torch.arange(S, device=q.device)
        dist = (lens[:, None] - pos[None]).float()
        s = s - self.slopes[None, :, :, None] * dist.abs()[:, None, None, :]
        s = s.masked_fill((pos[None] > lens[:, None])[:, None, None], float("-inf"))
        p = s.softmax(-1).to(q.dtype)
        y = torch.einsum("bkgs,bksd->bkgd", p, v).reshape(B, self.h * D)
        return self.o(y)


def get_inputs():
    B, H, KV, S, D = 4, 16, 4, 768, 64
    i8 = lambda: torch.randint(-127, 128, (B, KV, S, D), dtype=torch.int8)
    sc = lambda: (torch.rand(B, KV, S, 1) * 0.01 + 0.005).to(torch.float16)
    return [torch.randn(B, H, D, dtype=torch.float16), torch.randn(B, KV, D, dtype=torch.float16),
            torch.randn(B, KV, D, dtype=torch.float16), i8(), sc(), i8(), sc(), torch.randint(100, S, (B,))]


def get_init_inputs():
    return [16, 4, 64]
