import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 3
SEQ = 2048
DIM = 2560
HIDDEN = 6912
EPS = 1e-6


class Model(nn.Module):
    """
    Pre-norm transformer feed-forward in bfloat16: RMSNorm, fused gate/up
    linear with bias, SwiGLU, down linear with bias, residual.
    """

    def __init__(self, dim, hidden, eps):
        super().__init__()
        dtype = torch.bfloat16
        self.eps = eps
        self.norm_weight = nn.Parameter((1.0 + 0.1 * torch.randn(dim)).to(dtype))
        self.gate_up = nn.Linear(dim, 2 * hidden, bias=True, dtype=dtype)
        self.down = nn.Linear(hidden, dim, bias=True, dtype=dtype)
        nn.init.normal_(self.gate_up.weight, std=dim**-0.5)
        nn.init.normal_(self.down.weight, std=hidden**-0.5)

    def _norm(self, x):
        xf = x.float()
        xf = xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + self.eps)
        return xf.to(x.dtype) * self.norm_weight

    def forward(self, x):
        h = self.gate_up(self._norm(x))
        gate, up = h.chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def get_inputs():
    return [torch.randn(BATCH, SEQ, DIM, dtype=torch.bfloat16)]


def get_init_inputs():
    return [DIM, HIDDEN, EPS]
