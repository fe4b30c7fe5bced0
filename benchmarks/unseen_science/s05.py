import torch
import torch.nn as nn

B, M, K = 22000, 11, 6


class Model(nn.Module):
    """Levenberg-Marquardt pose step: damped 6x6 normal equations, hand-written Cholesky, two triangular solves."""

    def __init__(self, damping):
        super().__init__()
        self.damping = damping

    def forward(self, jac, res, weight):
        k = jac.shape[-1]
        a = torch.einsum('bmi,bm,bmj->bij', jac, weight, jac)
        g = torch.einsum('bmi,bm,bm->bi', jac, weight, res)
        L = [[None] * k for _ in range(k)]
        for i in range(k):
            for j in range(i + 1):
                s = a[:, i, j]
                for p in range(j):
                    s = s - L[i][p] * L[j][p]
                if i == j:
                    L[i][i] = torch.sqrt(s + self.damping * (1.0 + a[:, i, i]))
                else:
                    L[i][j] = s / L[j][j]
        y = []
        for i in range(k):
            s = g[:, i]
            for p in range(i):
                s = s - L[i][p] * y[p]
            y.append(s / L[i][i])
        x = [None] * k
        for i in reversed(range(k)):
            s = y[i]
            for p in range(i + 1, k):
                s = s - L[p][i] * x[p]
            x[i] = s / L[i][i]
        logdet = sum(torch.log(L[i][i]) for i in range(k)) * 2.0
        return torch.stack(x + [logdet], dim=-1)


def get_inputs():
    return [torch.randn(B, M, K), torch.randn(B, M), torch.rand(B, M)]


def get_init_inputs():
    return [0.1]
