import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d=128, heads=4):
        super().__init__()
        self.h = heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, memory):
        B, T, D = x.shape
        sp = lambda t: t.view(B, -1, self.h, D // self.h).transpose(1, 2)
        a = F.scaled_dot_product_attention(sp(self.q(x)), sp(self.k(memory)), sp(self.v(memory)))
        return self.o(a.transpose(1, 2).reshape(B, T, D))


def get_inputs():
    return [torch.randn(4, 16, 128), torch.randn(4, 192, 128)]


def get_init_inputs():
    return [128, 4]
