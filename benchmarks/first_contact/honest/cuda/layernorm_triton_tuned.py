import torch
import torch.nn as nn
import triton
import triton.language as tl


def configs():
    return [triton.Config({}, num_warps=w) for w in (2, 4, 8)]


@triton.autotune(configs=configs(), key=["N", "BLOCK"])
@triton.jit
def add_layernorm_fwd(X, R, W, B, Y, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    keep = cols < N
    x = tl.load(X + row * stride + cols, mask=keep, other=0.0).to(tl.float32)
    r = tl.load(R + row * stride + cols, mask=keep, other=0.0).to(tl.float32)
    s = x + r
    mean = tl.sum(s, axis=0) / N
    d = tl.where(keep, s - mean, 0.0)
    # one correction step: what the first mean left over
    shift = tl.sum(d, axis=0) / N
    d = tl.where(keep, d - shift, 0.0)
    var = tl.sum(d * d, axis=0) / N
    rstd = 1.0 / tl.sqrt(var + eps)
    w = tl.load(W + cols, mask=keep, other=0.0)
    b = tl.load(B + cols, mask=keep, other=0.0)
    tl.store(Y + row * stride + cols, d * rstd * w + b, mask=keep)


class ModelNew(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda, "this is a GPU kernel"
        x, residual = x.contiguous(), residual.contiguous()
        n = x.shape[-1]
        rows = x.numel() // n
        y = torch.empty_like(x)
        block = triton.next_power_of_2(n)
        if block > 65536 // x.element_size():
            raise RuntimeError("rows of 64 KB and more are not supported")
        add_layernorm_fwd[(rows,)](x, residual, self.norm.weight, self.norm.bias, y, n, n, self.norm.eps, BLOCK=block)
        return y
