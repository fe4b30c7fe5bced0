import torch
import torch.nn as nn
import torch.nn.functional as F

DT = torch.bfloat16


class Model(nn.Module):
    """Gemma-like local attention: QK RMS norm, tanh logit soft-cap, causal band mask, learned sink logit, float32 softmax."""

    def __init__(self, heads, head_dim, window, cap):
        super().__init__()
        self.window, self.cap, self.scale = window, cap, head_dim ** -0.5
        self.qn = nn.Parameter((torch.rand(head_dim) + 0.5).to(DT))
        self.kn = nn.Parameter((torch.rand(head_dim) + 0.5).to(DT))
        self.sink = nn.Parameter(torch.randn(heads))

    def norm(self, x, w):
        f = x.float()
        return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w

    def forward(self, q, k, v):
        B, H, T, D = q.shape
        q, k = self.norm(q, self.qn), self.norm(k, self.kn)
        s = torch.matmul(q, k.transpose(-1, -2)).float() * self.scale
        s = self.cap * torch.tanh(s / self.cap)
        i = torch.arange(T, device=q.device)
        dist = i[:, None] - i[None, :]
        keep = (dist >= 0) & (dist < self.window)
        s = s.masked_fill(~keep, float("-inf"))
        sink = self.sink.view(1, H, 1, 1).expand(B, H, T, 1)
        p = torch.cat((s, sink), -1).softmax(-1)[..., :-1]
        o = torch.matmul(p.to(v.dtype), v)
        return o.transpose(1, 2).reshape(B, T, H * D)


def get_inputs():
    return [torch.randn(1, 4, 384, 64, dtype=torch.bfloat16) for _ in range(3)]


def get_init_inputs():
    return [4, 64, 96, 30.0]
