import torch
import torch.nn as nn
import torch.nn.functional as F

DT = torch.float16


class Model(nn.Module):
    """Fourier-operator-like mixing with complex numbers as real pairs: per-mode complex einsum, modReLU, phase rotation, magnitude."""

    def __init__(self, modes, c_in, c_out):
        super().__init__()
        self.w = nn.Parameter((torch.randn(modes, c_in, c_out, 2) * (2 * c_in) ** -0.5).to(DT))
        self.b = nn.Parameter((torch.randn(c_out) * 0.1).to(DT))
        self.phase = nn.Parameter(torch.rand(modes, 1) * 6.28)

    def forward(self, x):
        # x (B, modes, c_in, 2)
        xr, xi = x.unbind(-1)
        wr, wi = self.w.unbind(-1)
        # three-multiplication complex product
        p1 = torch.einsum("bmi,mio->bmo", xr, wr)
        p2 = torch.einsum("bmi,mio->bmo", xi, wi)
        p3 = torch.einsum("bmi,mio->bmo", xr + xi, wr + wi)
        yr, yi = p1 - p2, p3 - p1 - p2
        mag = torch.sqrt(yr.float().square() + yi.float().square() + 1e-6)
        gain = (F.relu(mag + self.b.float()) / mag).to(x.dtype)
        yr, yi = yr * gain, yi * gain
        c, s = self.phase.cos().to(x.dtype), self.phase.sin().to(x.dtype)
        zr, zi = yr * c - yi * s, yr * s + yi * c
        return torch.stack((zr, zi), -1), torch.hypot(zr.float(), zi.float()).mean(1).to(x.dtype)


def get_inputs():
    return [torch.randn(16, 64, 48, 2, dtype=torch.float16)]


def get_init_inputs():
    return [64, 48, 64]
