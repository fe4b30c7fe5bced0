import torch
import torch.nn as nn


class Model(nn.Module):
    """Rotary embedding of bfloat16 queries and keys that lie (batch, time, heads, dim), positions given."""

    def __init__(self, dim, base):
        super().__init__()
        self.register_buffer("freq", base ** (-torch.arange(0, dim, 2).float() / dim))

    def forward(self, qk, pos):
        a = pos[:, :, None].float() * self.freq
        cos, sin = a.cos()[:, :, None, :], a.sin()[:, :, None, :]
        out = []
        for t in qk.unbind(2):
            lo, hi = t.float().chunk(2, -1)
            r = torch.cat([lo * cos - hi * sin, hi * cos + lo * sin], -1)
            out.append(r.to(qk.dtype).transpose(1, 2))
        return tuple(out)


def get_inputs():
    return [torch.randn(4, 128, 2, 6, 64).bfloat16(), torch.randint(0, 4096, (4, 128))]


def get_init_inputs():
    return [64, 10000.0]
