import torch
import torch.nn as nn
import torch.nn.functional as F

DT = torch.bfloat16


class Model(nn.Module):
    """Conformer convolution module: LN, pointwise + GLU, mask, depthwise conv, BN(eval) folded by hand, SiLU, pointwise, residual."""

    def __init__(self, dim, kernel):
        super().__init__()
        self.ln = nn.LayerNorm(dim, dtype=DT)
        self.pw1 = nn.Conv1d(dim, 2 * dim, 1, dtype=DT)
        self.dw = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim, bias=False, dtype=DT)
        self.pw2 = nn.Conv1d(dim, dim, 1, dtype=DT)
        self.register_buffer("mean", torch.randn(dim) * 0.1)
        self.register_buffer("var", torch.rand(dim) + 0.5)
        self.g = nn.Parameter(torch.rand(dim) + 0.5)
        self.b = nn.Parameter(torch.randn(dim) * 0.1)

    def forward(self, x, lens):
        T = x.shape[1]
        keep = (torch.arange(T, device=x.device)[None] < lens[:, None]).unsqueeze(1)
        h = self.ln(x).transpose(1, 2)
        h = F.glu(self.pw1(h), dim=1) * keep.to(x.dtype)
        h = self.dw(h)
        s = self.g * torch.rsqrt(self.var + 1e-5)
        h = (h.float() * s[:, None] + (self.b - self.mean * s)[:, None]).to(x.dtype)
        h = self.pw2(F.silu(h)).masked_fill(~keep, 0.0)
        return x + 0.5 * h.transpose(1, 2)


def get_inputs():
    return [torch.randn(6, 200, 176, dtype=torch.bfloat16), torch.randint(90, 201, (6,))]


def get_init_inputs():
    return [176, 31]
