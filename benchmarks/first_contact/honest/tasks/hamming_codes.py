import torch
import torch.nn as nn


class Model(nn.Module):
    """Hamming distances between 256-bit codes (four int64 each)."""

    def forward(self, a, b):
        x = a[:, None] ^ b
        x = x - ((x >> 1) & 0x5555555555555555)
        x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333)
        x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0F
        x = (x * 0x0101010101010101) >> 56
        return x.sum(-1).int()


def get_inputs():
    low, high = -(2**63), 2**63 - 1
    return [torch.randint(low, high, (96, 4)), torch.randint(low, high, (512, 4))]


def get_init_inputs():
    return []
