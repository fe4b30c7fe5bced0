import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 96
DIM = 4096
HIDDEN = 14336
GROUP = 128


class Model(nn.Module):
    """
    Weight-only int8 (W8A16) gate/up projection for decoding: int8 weights with
    a float16 scale for each group of input channels, then SwiGLU.
    """

    def __init__(self, dim, hidden, group):
        super().__init__()
        self.dim, self.group = dim, group
        rows = 2 * hidden
        qweight = torch.randint(-127, 128, (rows, dim), dtype=torch.int8)
        # Weights of standard deviation about 1 / sqrt(dim).
        scales = (0.5 + torch.rand(rows, dim // group)) * (dim**-0.5 / 73.0)
        self.register_buffer("qweight", qweight)
        self.register_buffer("scales", scales.half())
        self.register_buffer("bias", (0.1 * torch.randn(rows)).half())

    def forward(self, x):
        rows = self.qweight.shape[0]
        w = self.qweight.to(x.dtype).view(rows, -1, self.group)
        w = (w * self.scales.unsqueeze(-1)).view(rows, self.dim)
        y = F.linear(x, w, self.bias)
        gate, up = y.chunk(2, dim=-1)
        return F.silu(gate) * up


def get_inputs():
    return [torch.randn(TOKENS, DIM, dtype=torch.float16)]


def get_init_inputs():
    return [DIM, HIDDEN, GROUP]
