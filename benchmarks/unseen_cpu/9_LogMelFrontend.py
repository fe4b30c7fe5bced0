import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Speech front end: pre-emphasis, reflect pad, framing, DFT by matmul, power, mel filters, clamped log, per-band norm."""

    def __init__(self, n_fft, hop, n_mels):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        bins = n_fft // 2 + 1
        t = torch.arange(n_fft).float()
        ang = 2 * math.pi * t[:, None] * torch.arange(bins).float()[None, :] / n_fft
        win = 0.5 - 0.5 * torch.cos(2 * math.pi * t / n_fft)
        self.register_buffer("re", win[:, None] * ang.cos())
        self.register_buffer("im", -win[:, None] * ang.sin())
        hz = torch.linspace(0, 8000, bins)
        pts = 700 * (10 ** (torch.linspace(0, 2840.0, n_mels + 2) / 2595) - 1)
        up = (hz[:, None] - pts[None, :-2]) / (pts[1:-1] - pts[:-2])
        down = (pts[None, 2:] - hz[:, None]) / (pts[2:] - pts[1:-1])
        self.register_buffer("mel", torch.minimum(up, down).clamp(min=0))

    def forward(self, wav):
        x = torch.cat((wav[:, :1], wav[:, 1:] - 0.97 * wav[:, :-1]), dim=1)
        x = F.pad(x.unsqueeze(1), (self.n_fft // 2, self.n_fft // 2), mode="reflect").squeeze(1)
        fr = x.unfold(1, self.n_fft, self.hop)
        power = (fr @ self.re).pow(2) + (fr @ self.im).pow(2)
        m = torch.log10((power @ self.mel).clamp(min=1e-10))
        m = torch.maximum(m, m.amax(dim=(1, 2), keepdim=True) - 8.0)
        mean = m.mean(1, keepdim=True)
        std = m.var(1, keepdim=True, unbiased=False).add(1e-5).sqrt()
        return ((m - mean) / std).transpose(1, 2)


def get_inputs():
    return [torch.randn(8, 24000)]


def get_init_inputs():
    return [400, 160, 80]
