"""Tasks in which PyTorch uses TF32, where it may, for some products at most: odd sizes, groups, one channel."""

from __future__ import annotations

WINDOWS = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, dim=96, heads=3, window=7, registers=4):
        super().__init__()
        self.heads, self.window, self.scale = heads, window, (dim // heads) ** -0.5
        self.registers = nn.Parameter(torch.randn(registers, dim) * 0.02)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, c, h, w = x.shape
        p = self.window
        tokens = x.reshape(b, c, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1).reshape(-1, p * p, c)
        rows = torch.cat([self.registers.expand(tokens.shape[0], -1, -1), tokens], 1)
        q, k, v = self.qkv(rows).reshape(*rows.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = torch.einsum("ngid,ngjd->ngij", q * self.scale, k).softmax(-1)
        mixed = torch.einsum("ngij,ngjd->ngid", weights, v)
        return self.out(mixed.transpose(1, 2).reshape(rows.shape))[:, self.registers.shape[0]:]

def get_inputs():
    return [torch.randn(2, 96, 28, 42)]
"""

FILTERS = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, bands=20, taps=101, coefficients=13):
        super().__init__()
        self.register_buffer("bank", torch.randn(bands, 1, taps) / taps**0.5)
        self.register_buffer("basis", torch.randn(bands, coefficients) / bands**0.5)
        self.register_buffer("window", torch.hann_window(256) / 128)

    def forward(self, wave):
        frames = F.conv1d(wave[:, None], self.bank, padding="same").square().unfold(-1, 256, 128)
        energy = torch.einsum("bcft,t->bfc", frames, self.window)
        found = torch.log(energy.clamp_min(1e-10)) @ self.basis
        return found, 0.5 * (found[:, 2:] - found[:, :-2])

def get_inputs():
    return [torch.randn(2, 12000)]
"""

GROUPS = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, channels=64, kernel=5, dilation=4, groups=4):
        super().__init__()
        self.span = (kernel - 1) * dilation
        self.norm = nn.BatchNorm1d(channels)
        self.dilated = nn.Conv1d(channels, 2 * channels, kernel, dilation=dilation, groups=groups)
        self.mix = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        y = F.pad(self.norm(x), (self.span // 2, self.span - self.span // 2))
        return x + self.mix(torch.tanh(F.glu(self.dilated(y), dim=1)))

def get_inputs():
    return [torch.randn(4, 64, 700)]
"""

TASKS = {"windows": WINDOWS, "filters": FILTERS, "groups": GROUPS}
