import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4
SEQ = 3072
DIM = 1536
INNER = 3072
KERNEL = 4
EPS = 1e-5


class Model(nn.Module):
    """
    Mamba-like gated mixer in bfloat16 (without the state-space scan):
    in-projection, causal depthwise conv1d, SiLU, gate, RMSNorm, out-projection.
    """

    def __init__(self, dim, inner, kernel, eps):
        super().__init__()
        factory = {"dtype": torch.bfloat16}
        self.eps = eps
        self.inner = inner
        self.in_proj = nn.Linear(dim, 2 * inner, bias=False, **factory)
        self.conv1d = nn.Conv1d(inner, inner, kernel, groups=inner, padding=kernel - 1, bias=True, **factory)
        self.norm_weight = nn.Parameter(1.0 + 0.1 * torch.randn(inner).to(torch.bfloat16))
        self.out_proj = nn.Linear(inner, dim, bias=False, **factory)
        nn.init.normal_(self.in_proj.weight, std=dim**-0.5)

    def forward(self, hidden):
        seqlen = hidden.shape[1]
        xz = self.in_proj(hidden)
        x, z = xz.split([self.inner, self.inner], dim=-1)
        x = self.conv1d(x.transpose(1, 2))[..., :seqlen]
        x = F.silu(x).transpose(1, 2)
        y = (x * F.silu(z)).float()
        y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + self.eps)
        y = y.to(hidden.dtype) * self.norm_weight
        return self.out_proj(y)


def get_inputs():
    return [torch.randn(BATCH, SEQ, DIM, dtype=torch.bfloat16)]


def get_init_inputs():
    return [DIM, INNER, KERNEL, EPS]
