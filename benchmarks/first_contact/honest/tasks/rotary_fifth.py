import torch
import torch.nn as nn

BATCH, HEADS, LENGTH, DEPTH = 2, 6, 201, 40

class Model(nn.Module):
    def __init__(self, length, depth):
        super().__init__()
        frequency = 10000.0 ** (-torch.arange(0, depth, 2) / depth)
        angle = torch.arange(length)[:, None] * frequency[None]
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def rotate(self, x):
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * self.cos - second * self.sin, second * self.cos + first * self.sin], dim=-1)

    def forward(self, q, k):
        return self.rotate(q), self.rotate(k)

def get_inputs():
    return [torch.randn(BATCH, HEADS, LENGTH, DEPTH), torch.randn(BATCH, HEADS, LENGTH, DEPTH)]

def get_init_inputs():
    return [LENGTH, DEPTH]
