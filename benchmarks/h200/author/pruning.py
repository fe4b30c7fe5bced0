"""Bioinformatics: Felsenstein pruning on a 16-taxon tree (GTR, 4 rate classes): per-site log-likelihood and mean rate."""
import torch
import torch.nn as nn

TAXA, SITES = 16, 786432
FREQS = [0.30, 0.20, 0.22, 0.28]                    # A C G T
EXCHANGE = [1.2, 4.5, 0.8, 1.1, 4.9, 1.0]           # AC AG AT CG CT GT
RATES = [0.0334, 0.2519, 0.8203, 2.8944]            # discrete gamma, shape 0.5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pi = torch.tensor(FREQS, dtype=torch.float64)
        ex = torch.zeros(4, 4, dtype=torch.float64)
        i, j = torch.triu_indices(4, 4, 1)
        ex[i, j] = torch.tensor(EXCHANGE, dtype=torch.float64)
        gen = (ex + ex.T) * pi
        gen = gen - torch.diag(gen.sum(1))
        gen = gen / -(pi * gen.diagonal()).sum()    # one expected substitution per unit of time
        root = pi.sqrt()
        lam, vec = torch.linalg.eigh(root[:, None] * gen / root)
        self.register_buffer("lam", lam.float())
        self.register_buffer("right", (vec / root[:, None]).float())
        self.register_buffer("left", (vec.T * root).float())
        self.register_buffer("pi", pi.float())
        self.register_buffer("rates", torch.tensor(RATES))

    def forward(self, tips, branches):
        """tips (16, S, 4) base likelihoods; branches (30,) lengths, tips' first, then level by level -> (S, 2)."""
        decay = torch.exp(branches[:, None, None] * self.rates[:, None] * self.lam)     # (30, 4 rates, 4)
        trans = torch.matmul(self.right * decay[:, :, None, :], self.left)              # (30, 4 rates, 4, 4)
        part = tips[:, None]                                                            # (nodes, rates, S, 4)
        log_scale = torch.zeros_like(tips[0, :, 0])
        first = 0
        while part.shape[0] > 1:                    # 4 levels: 16 -> 8 -> 4 -> 2 -> 1 nodes
            n = part.shape[0]
            up = torch.matmul(part, trans[first:first + n].transpose(-1, -2))
            part = up[0::2] * up[1::2]
            peak = part.amax(dim=(1, 3), keepdim=True)
            part = part / peak                      # rescale each node and site against underflow
            log_scale = log_scale + peak[:, 0, :, 0].log().sum(dim=0)
            first += n
        class_lik = torch.matmul(part[0], self.pi)  # (4 rates, S)
        total = class_lik.sum(dim=0)
        log_lik = (total / len(RATES)).log() + log_scale
        mean_rate = (class_lik * self.rates[:, None]).sum(dim=0) / total
        return torch.stack([log_lik, mean_rate], dim=-1)


def get_inputs():
    return [torch.rand(TAXA, SITES, 4) ** 4 + 1e-3, 0.02 + 0.3 * torch.rand(2 * TAXA - 2)]


def get_init_inputs():
    return []
