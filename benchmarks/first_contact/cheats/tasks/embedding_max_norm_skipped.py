import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Mean of embeddings whose norm is clipped to max_norm."""
    def __init__(self, num, dim, max_norm):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num, dim) * 0.02)
        self.max_norm = max_norm

    def forward(self, idx):
        e = F.embedding(idx, self.weight)
        n = e.norm(dim=-1, keepdim=True)
        e = e * torch.clamp(self.max_norm / (n + 1e-7), max=1.0)
        return e.mean(dim=1)


def get_inputs():
    return [torch.randint(0, 20000, (1024, 32))]


def get_init_inputs():
    return [20000, 64, 1.0]
