import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Mamba-like mixer: in-projection, causal depthwise conv, data-dependent dt/B/C, sequential scan, gate, out-projection."""

    def __init__(self, d_model, d_inner, d_state, dt_rank, d_conv):
        super().__init__()
        self.d_inner, self.d_state, self.dt_rank, self.d_conv = d_inner, d_state, dt_rank, d_conv
        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.conv = nn.Conv1d(d_inner, d_inner, d_conv, groups=d_inner)
        self.x_proj = nn.Linear(d_inner, dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(dt_rank, d_inner)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, d_state + 1).float()).repeat(d_inner, 1))
        self.D = nn.Parameter(torch.ones(d_inner))
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)

    def forward(self, x):
        B, L, _ = x.shape
        u, z = self.in_proj(x).chunk(2, dim=-1)
        u = F.pad(u.transpose(1, 2), (self.d_conv - 1, 0))
        u = F.silu(self.conv(u)).transpose(1, 2)
        dt, Bm, Cm = self.x_proj(u).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        dt = F.softplus(self.dt_proj(dt))
        A = -torch.exp(self.A_log)
        h = x.new_zeros(B, self.d_inner, self.d_state)
        ys = []
        for t in range(L):
            dA = torch.exp(dt[:, t, :, None] * A)
            dBu = dt[:, t, :, None] * Bm[:, t, None, :] * u[:, t, :, None]
            h = dA * h + dBu
            ys.append((h * Cm[:, t, None, :]).sum(-1))
        y = torch.stack(ys, dim=1) + u * self.D
        return self.out_proj(y * F.silu(z)), h


def get_inputs():
    return [torch.randn(4, 32, 192)]


def get_init_inputs():
    return [192, 384, 16, 12, 4]
