import torch
import torch.nn as nn

B, T = 900, 12


class Model(nn.Module):
    """Batch of constant-velocity Kalman filters (state 4, measurement 2) with gating and Joseph-form covariance update."""

    def __init__(self, dt, q, r, gate):
        super().__init__()
        F = torch.eye(4)
        F[0, 2] = F[1, 3] = dt
        self.register_buffer('F', F)
        self.register_buffer('H', torch.eye(2, 4))
        self.register_buffer('Q', q * torch.eye(4))
        self.register_buffer('R', r * torch.eye(2))
        self.register_buffer('I', torch.eye(4))
        self.gate = gate

    def forward(self, z, x0, p0):
        x = x0
        P = torch.diag_embed(p0 + 0.1)
        ll = torch.zeros_like(x0[:, 0])
        for t in range(z.shape[1]):
            x = x @ self.F.T
            P = self.F @ P @ self.F.T + self.Q
            y = z[:, t] - x @ self.H.T
            S = self.H @ P @ self.H.T + self.R
            a, b, c, d = S[:, 0, 0], S[:, 0, 1], S[:, 1, 0], S[:, 1, 1]
            det = a * d - b * c
            Si = torch.stack([d, -b, -c, a], -1).view(-1, 2, 2) / det[:, None, None]
            K = P @ self.H.T @ Si
            m = torch.einsum('bi,bij,bj->b', y, Si, y)
            keep = (m < self.gate).to(y.dtype)
            K = K * keep[:, None, None]
            x = x + torch.einsum('bij,bj->bi', K, y)
            A = self.I - K @ self.H
            P = A @ P @ A.transpose(1, 2) + K @ self.R @ K.transpose(1, 2)
            ll = ll - 0.5 * (m * keep + torch.log(det))
        return torch.cat([x, P.diagonal(dim1=1, dim2=2), ll[:, None]], -1)


def get_inputs():
    return [torch.randn(B, T, 2), torch.randn(B, 4), torch.rand(B, 4)]


def get_init_inputs():
    return [0.5, 0.05, 0.3, 9.2]
