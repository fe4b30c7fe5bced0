import torch
import torch.nn as nn
import torch.nn.functional as F

DT = torch.bfloat16


class Model(nn.Module):
    """Text-conditioned cross attention of a diffusion transformer: AdaLN modulation, padded keys masked, gated residual."""

    def __init__(self, dim, ctx_dim, heads, t_dim):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.mod = nn.Linear(t_dim, 3 * dim, dtype=DT)
        self.q = nn.Linear(dim, dim, dtype=DT)
        self.kv = nn.Linear(ctx_dim, 2 * dim, dtype=DT)
        self.o = nn.Linear(dim, dim, dtype=DT)

    def forward(self, x, ctx, temb, lens):
        B, T, C = x.shape
        S = ctx.shape[1]
        shift, scale, gate = self.mod(F.silu(temb)).unsqueeze(1).chunk(3, dim=-1)
        h = F.layer_norm(x, (C,), eps=1e-6) * (1 + scale) + shift
        q = self.q(h).view(B, T, self.h, self.d).transpose(1, 2)
        k, v = self.kv(ctx).view(B, S, 2, self.h, self.d).permute(2, 0, 3, 1, 4)
        pad = torch.arange(S, device=x.device)[None, :] >= lens[:, None]
        bias = torch.zeros(B, 1, 1, S, dtype=x.dtype, device=x.device).masked_fill(pad[:, None, None], float("-inf"))
        att = (torch.matmul(q, k.transpose(-1, -2)) * self.d ** -0.5 + bias).softmax(-1)
        y = torch.matmul(att, v).transpose(1, 2).reshape(B, T, C)
        return x + gate * self.o(y)


def get_inputs():
    return [torch.randn(2, 576, 256, dtype=torch.bfloat16), torch.randn(2, 77, 256, dtype=torch.bfloat16),
            torch.randn(2, 128, dtype=torch.bfloat16), torch.randint(5, 78, (2,))]


def get_init_inputs():
    return [256, 256, 8, 128]
