import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, length, dim):
        super().__init__()
        f = 10000.0 ** (-torch.arange(0, dim, 2) / dim)
        ang = torch.arange(length)[:, None] * f[None]
        self.register_buffer("cos", torch.cos(ang))
        self.register_buffer("sin", torch.sin(ang))
    def forward(self, q, k, pos):
        c, s = self.cos[pos][:, :, None], self.sin[pos][:, :, None]
        def rot(x):
            a, b = x.chunk(2, dim=-1)
            return torch.cat([a * c - b * s, b * c + a * s], -1)
        return rot(q), rot(k)
def get_inputs():
    return [torch.randn(2, 96, 8, 64), torch.randn(2, 96, 2, 64), torch.randint(0, 512, (2, 96))]
def get_init_inputs():
    return [512, 64]
