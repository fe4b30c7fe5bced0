import math
import torch
import torch.nn as nn

N, D, P, NB, OUT = 14000, 5, 6, 56, 3


class Model(nn.Module):
    """Polynomial chaos surrogate: normalised Hermite recurrences in 5 germs, multi-index products, responses and first-order Sobol indices."""

    def __init__(self, d, p, nb, out):
        super().__init__()
        g = torch.Generator().manual_seed(7)
        mi = torch.randint(0, p, (nb, d), generator=g) * (torch.rand(nb, d, generator=g) < 0.45)
        mi[0] = 0
        self.register_buffer('mi', mi)
        self.coef = nn.Parameter(torch.randn(nb, out) * 0.3)
        self.p = p

    def forward(self, xi, gain):
        h = [torch.ones_like(xi), xi]
        for n in range(1, self.p - 1):
            h.append((xi * h[n] - math.sqrt(n) * h[n - 1]) / math.sqrt(n + 1))
        h = torch.stack(h, dim=-1)
        psi = h[:, 0][:, self.mi[:, 0]]
        for j in range(1, xi.shape[1]):
            psi = psi * h[:, j][:, self.mi[:, j]]
        y = torch.einsum('nb,bo,no->no', psi, self.coef, gain)
        c2 = self.coef.square()
        act = self.mi > 0
        only = act & (act.sum(1, keepdim=True) == 1)
        total = (c2 * act.any(1, keepdim=True)).sum(0)
        first = torch.einsum('bd,bo->do', only.to(c2.dtype), c2) / (total + 1e-6)
        tot = torch.einsum('bd,bo->do', act.to(c2.dtype), c2) / (total + 1e-6)
        return torch.cat([y, first, tot], dim=0)


def get_inputs():
    return [torch.randn(N, D), torch.rand(N, OUT)]


def get_init_inputs():
    return [D, P, NB, OUT]
