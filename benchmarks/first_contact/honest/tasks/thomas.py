import torch
import torch.nn as nn


class Model(nn.Module):
    """Batched tridiagonal systems (diagonally dominant by construction), Thomas algorithm."""

    def forward(self, a, c, extra, rhs):
        b = 1 + a.abs() + c.abs() + extra.abs()
        n = a.shape[1]
        cp, dp = [c[:, 0] / b[:, 0]], [rhs[:, 0] / b[:, 0]]
        for i in range(1, n):
            den = b[:, i] - a[:, i] * cp[-1]
            cp.append(c[:, i] / den)
            dp.append((rhs[:, i] - a[:, i] * dp[-1]) / den)
        x = [dp[-1]]
        for i in range(n - 2, -1, -1):
            x.append(dp[i] - cp[i] * x[-1])
        return torch.stack(x[::-1], 1)


def get_inputs():
    return [torch.randn(512, 64), torch.randn(512, 64), torch.randn(512, 64), torch.randn(512, 64)]


def get_init_inputs():
    return []
