import torch
import torch.nn as nn


class Model(nn.Module):
    """Rotary position embedding of q and k (GPT-NeoX halves)."""

    def __init__(self, head_size: int, positions: int):
        super().__init__()
        inv = 1.0 / (10000 ** (torch.arange(0, head_size, 2).float() / head_size))
        angle = torch.outer(torch.arange(positions).float(), inv)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def rotate(self, x):
        half = x.shape[-1] // 2
        a, b = x[..., :half], x[..., half:]
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def forward(self, q, k):
        return self.rotate(q), self.rotate(k)


def get_inputs():
    return [torch.randn(2, 8, 256, 64), torch.randn(2, 2, 256, 64)]


def get_init_inputs():
    return [64, 512]
