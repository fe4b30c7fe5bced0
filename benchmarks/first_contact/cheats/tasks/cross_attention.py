import torch
import torch.nn as nn


class Model(nn.Module):
    """Multi-head cross attention of a few queries over a context."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.o_proj = nn.Linear(dim, dim)

    def forward(self, x, context):
        B, T, D = x.shape
        S, H = context.shape[1], self.heads
        q = self.q_proj(x).view(B, T, H, D // H).transpose(1, 2)
        k = self.k_proj(context).view(B, S, H, D // H).transpose(1, 2)
        v = self.v_proj(context).view(B, S, H, D // H).transpose(1, 2)
        a = torch.softmax(q @ k.transpose(-1, -2) / (D // H) ** 0.5, dim=-1)
        return self.o_proj((a @ v).transpose(1, 2).reshape(B, T, D))


def get_inputs():
    return [torch.randn(2, 16, 256), torch.randn(2, 384, 256)]


def get_init_inputs():
    return [256, 4]
