import torch
import torch.nn as nn


class Model(nn.Module):
    """Causal attention that sees the last `window` positions, with a learned bias per distance and head."""

    def __init__(self, heads, window):
        super().__init__()
        self.window = window
        self.rel = nn.Parameter(torch.randn(heads, window) * 0.5)

    def forward(self, q, k, v):
        n, dim = q.shape[-2:]
        i = torch.arange(n, device=q.device)
        dist = i[:, None] - i[None, :]
        s = q @ k.transpose(-1, -2) * dim ** -0.5 + self.rel[:, dist.clamp(0, self.window - 1)]
        s = s.masked_fill((dist < 0) | (dist >= self.window), float("-inf"))
        return torch.softmax(s, -1) @ v


def get_inputs():
    return [torch.randn(2, 4, 320, 32), torch.randn(2, 4, 320, 32), torch.randn(2, 4, 320, 32)]


def get_init_inputs():
    return [4, 24]
