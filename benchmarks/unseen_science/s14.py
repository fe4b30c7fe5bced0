import math
import torch
import torch.nn as nn

N, K, D, R = 9000, 12, 18, 3


class Model(nn.Module):
    """Mixture of factor analysers: Woodbury log-densities with closed-form 3x3 inverse, responsibilities and latent means."""

    def __init__(self, k, d, r):
        super().__init__()
        self.mu = nn.Parameter(torch.randn(k, d))
        self.load = nn.Parameter(torch.randn(k, d, r) * 0.5)
        self.logpsi = nn.Parameter(torch.randn(k, d) * 0.3)
        self.logpi = nn.Parameter(torch.randn(k))

    def forward(self, x):
        ipsi = torch.exp(-self.logpsi)
        wl = self.load * ipsi[..., None]
        m = torch.einsum('kdr,kds->krs', wl, self.load) + torch.eye(3, device=x.device)
        c0, c1, c2 = m.unbind(-1)
        x12, x20, x01 = torch.cross(c1, c2, dim=-1), torch.cross(c2, c0, dim=-1), torch.cross(c0, c1, dim=-1)
        det = (c0 * x12).sum(-1)
        minv = torch.stack([x12, x20, x01], dim=1) / det[:, None, None]
        diff = x[:, None, :] - self.mu
        p = torch.einsum('nkd,kdr->nkr', diff, wl)
        lat = torch.einsum('nkr,krs->nks', p, minv)
        maha = (diff.square() * ipsi).sum(-1) - (p * lat).sum(-1)
        logdet = torch.log(det) + self.logpsi.sum(-1)
        lp = -0.5 * (maha + logdet + x.shape[1] * math.log(2 * math.pi))
        lp = lp + torch.log_softmax(self.logpi, 0)
        ll = torch.logsumexp(lp, dim=1, keepdim=True)
        resp = torch.exp(lp - ll)
        ent = -(resp * (lp - ll)).sum(1, keepdim=True)
        return torch.cat([ll, ent, (resp[..., None] * lat).sum(1)], dim=1)


def get_inputs():
    return [torch.randn(N, D)]


def get_init_inputs():
    return [K, D, R]
