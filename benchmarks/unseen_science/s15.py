import torch
import torch.nn as nn

NQ, LQ, ND, LD, C = 12, 13, 120, 61, 48


class Model(nn.Module):
    """ColBERT late-interaction scoring on float16 token vectors with doc lengths, plus in-batch margin against the best document."""

    def __init__(self, c, tau):
        super().__init__()
        self.tau = tau
        self.proj = nn.Parameter((torch.randn(c, c) / c ** 0.5).half())

    def forward(self, q, d, dlen):
        qf = q.float() @ self.proj.float()
        qf = qf / (qf.norm(dim=-1, keepdim=True) + 1e-6)
        df = d.float()
        df = df / (df.norm(dim=-1, keepdim=True) + 1e-6)
        sim = torch.einsum('qic,djc->qdij', qf, df)
        pad = torch.arange(d.shape[1], device=d.device)[None] >= dlen[:, None]
        sim = sim.masked_fill(pad[None, :, None, :], -1.0)
        best = sim.amax(-1)
        soft = self.tau * (torch.logsumexp(sim / self.tau, dim=-1) - torch.log(dlen.float())[None, :, None])
        score = best.sum(-1) + 0.1 * soft.sum(-1)
        top2 = score.topk(2, dim=1).values
        lead = torch.where(score >= top2[:, :1], top2[:, 1:], top2[:, :1])
        return torch.stack([score, score - lead, best.std(-1)], dim=-1).to(q.dtype)


def get_inputs():
    return [torch.randn(NQ, LQ, C).half(), torch.randn(ND, LD, C).half(), torch.randint(5, LD + 1, (ND,))]


def get_init_inputs():
    return [C, 0.1]
