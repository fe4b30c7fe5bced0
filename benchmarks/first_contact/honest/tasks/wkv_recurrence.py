import torch, torch.nn as nn


class Model(nn.Module):
    """RWKV-4's time mixing: an exponentially decaying weighted average, in the log domain."""

    def __init__(self, dim):
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(-3, 1, dim))
        self.first = nn.Parameter(torch.randn(dim) * 0.5)

    def forward(self, k, v):
        w = -torch.exp(self.decay)
        aa, bb = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0])
        pp = torch.full_like(aa, -1e38)
        out = []
        for t in range(k.shape[1]):
            kt, vt = k[:, t], v[:, t]
            ww = self.first + kt
            p = torch.maximum(pp, ww)
            e1, e2 = torch.exp(pp - p), torch.exp(ww - p)
            out.append((e1 * aa + e2 * vt) / (e1 * bb + e2))
            ww = pp + w
            p = torch.maximum(ww, kt)
            e1, e2 = torch.exp(ww - p), torch.exp(kt - p)
            aa, bb, pp = e1 * aa + e2 * vt, e1 * bb + e2, p
        return torch.stack(out, 1)


def get_inputs():
    return [torch.randn(2, 32, 256), torch.randn(2, 32, 256)]


def get_init_inputs():
    return [256]
