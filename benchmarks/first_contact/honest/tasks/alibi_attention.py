import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Causal attention with ALiBi: a penalty that grows with the distance, by head."""

    def __init__(self, heads):
        super().__init__()
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads))

    def forward(self, q, k, v):
        n = q.shape[2]
        at = torch.arange(n)
        distance = (at[:, None] - at[None, :]).to(q.dtype)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 - self.slopes[:, None, None] * distance
        scores = scores.masked_fill(at[:, None] < at[None, :], float("-inf"))
        return torch.softmax(scores, -1) @ v


def get_inputs():
    return [torch.randn(2, 4, 128, 32) for _ in range(3)]


def get_init_inputs():
    return [4]
