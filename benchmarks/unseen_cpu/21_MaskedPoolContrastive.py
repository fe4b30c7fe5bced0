import torch
import torch.nn as nn
import torch.nn.functional as F

DT = torch.bfloat16


class Model(nn.Module):
    """Sentence-embedding objective: masked mean pooling, projection, L2 norm, symmetric InfoNCE with same-group negatives removed."""

    def __init__(self, dim, out, temperature):
        super().__init__()
        self.proj = nn.Linear(dim, out, dtype=DT)
        self.logit_scale = nn.Parameter(torch.tensor(1.0 / temperature).log())

    def pool(self, tok, mask):
        m = mask.unsqueeze(-1).to(tok.dtype)
        s = (tok * m).float().sum(1) / m.float().sum(1).clamp(min=1.0)
        return F.normalize(torch.tanh(self.proj(s.to(tok.dtype))).float(), dim=-1)

    def forward(self, a, b, mask_a, mask_b, group):
        za, zb = self.pool(a, mask_a), self.pool(b, mask_b)
        sim = za @ zb.t() * self.logit_scale.exp().clamp(max=100.0)
        n = sim.shape[0]
        same = (group[:, None] == group[None, :]) & ~torch.eye(n, dtype=torch.bool, device=a.device)
        sim = sim.masked_fill(same, -1e4)
        tgt = torch.arange(n, device=a.device)
        loss = 0.5 * (F.cross_entropy(sim, tgt) + F.cross_entropy(sim.t(), tgt))
        acc = (sim.argmax(1) == tgt).float().mean()
        return loss, acc, za.to(a.dtype)


def get_inputs():
    B, T, C = 128, 64, 192
    mk = lambda: (torch.arange(T)[None] < torch.randint(8, T + 1, (B, 1))).long()
    topic = torch.randn(B, 1, C) * 0.1
    tok = lambda: (torch.randn(B, T, C) + topic).to(torch.bfloat16)
    return [tok(), tok(), mk(), mk(), torch.randint(0, 80, (B,))]


def get_init_inputs():
    return [192, 128, 0.07]
