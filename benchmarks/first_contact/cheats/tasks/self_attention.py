import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        a = torch.softmax(q @ k.transpose(-1, -2) / (D // self.heads) ** 0.5, -1)
        return self.out((a @ v).transpose(1, 2).reshape(B, T, D))


def get_inputs():
    return [torch.randn(4, 64, 128)]


def get_init_inputs():
    return [128, 4]
