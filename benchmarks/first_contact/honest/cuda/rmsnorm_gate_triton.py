import torch, triton
import torch.nn as nn
import triton.language as tl
from typing import Final

LOOP_BLOCK: Final = 1024


@triton.jit
def _silu(g):
    return g * (1.0 / (1.0 + tl.exp(-g)))


@triton.jit
def _rms_gate(x_ptr, g_ptr, w_ptr, y_ptr, n, eps, BLOCK: tl.constexpr):
    """Any row length: first loop sums squares, second loop writes (rows come from L2 then)."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * n
    g_ptr += row * n
    y_ptr += row * n
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + c, mask=c < n, other=0.0)
        acc += x * x
    rms = tl.rsqrt(tl.sum(acc, 0) / n + eps)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        m = c < n
        x = tl.load(x_ptr + c, mask=m, eviction_policy="evict_first")
        g = tl.load(g_ptr + c, mask=m)
        w = tl.load(w_ptr + c, mask=m)
        tl.store(y_ptr + c, x * rms * w * _silu(g), mask=m)


class _RMSGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gate, weight, eps):
        x, gate = x.contiguous(), gate.contiguous()
        y = torch.empty_like(x)
        n = x.shape[-1]
        block = min(LOOP_BLOCK, triton.next_power_of_2(n))
        _rms_gate[(x.numel() // n,)](x, gate, weight, y, n, eps, BLOCK=block, num_warps=4)
        return y

    @staticmethod
    def backward(ctx, dy):
        raise NotImplementedError("inference only")


class ModelNew(nn.Module):
    def __init__(self, features: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.eps = eps

    def forward(self, x, gate):
        return _RMSGate.apply(x, gate, self.weight, self.eps)
