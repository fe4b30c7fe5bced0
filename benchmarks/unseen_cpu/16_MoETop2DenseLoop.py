import torch
import torch.nn as nn
import torch.nn.functional as F

DT = torch.bfloat16


class Model(nn.Module):
    """Top-2 routed mixture of gated experts, evaluated densely per expert, plus a shared expert and load-balance statistic."""

    def __init__(self, dim, inter, experts, shared_inter):
        super().__init__()
        self.E = experts
        self.router = nn.Parameter(torch.randn(experts, dim) * 0.1)
        self.w1 = nn.Parameter((torch.randn(experts, 2 * inter, dim) * dim ** -0.5).to(DT))
        self.w2 = nn.Parameter((torch.randn(experts, dim, inter) * inter ** -0.5).to(DT))
        self.s1 = nn.Linear(dim, shared_inter, dtype=DT)
        self.s2 = nn.Linear(shared_inter, dim, dtype=DT)

    def forward(self, x):
        B, T, C = x.shape
        t = x.reshape(-1, C)
        prob = (t.float() @ self.router.t()).softmax(-1)
        val, idx = prob.topk(2, dim=-1)
        val = val / val.sum(-1, keepdim=True)
        combine = torch.zeros_like(prob).scatter(1, idx, val)
        out = torch.zeros(t.shape[0], C, dtype=torch.float32, device=x.device)
        for e in range(self.E):
            g, u = F.linear(t, self.w1[e]).chunk(2, -1)
            y = F.linear(F.gelu(g, approximate="tanh") * u, self.w2[e])
            out = out + combine[:, e:e + 1] * y.float()
        out = out + self.s2(F.relu(self.s1(t)).square()).float()
        load = (combine > 0).float().mean(0)
        aux = self.E * (load * prob.mean(0)).sum()
        return out.to(x.dtype).view(B, T, C), aux


def get_inputs():
    return [torch.randn(2, 96, 256, dtype=torch.bfloat16)]


def get_init_inputs():
    return [256, 384, 8, 384]
