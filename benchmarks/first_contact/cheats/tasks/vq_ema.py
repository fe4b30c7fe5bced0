import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, k, d):
        super().__init__()
        self.register_buffer("embed", torch.randn(k, d))
        self.register_buffer("cluster_size", torch.ones(k))
        self.register_buffer("embed_sum", self.embed.clone())

    def forward(self, x):
        e = self.embed
        idx = torch.cdist(x, e).argmin(1)
        q = e[idx]
        if self.training:
            with torch.no_grad():
                one = F.one_hot(idx, e.shape[0]).to(x.dtype)
                self.cluster_size.mul_(0.99).add_(one.sum(0), alpha=0.01)
                self.embed_sum.mul_(0.99).add_(one.T @ x, alpha=0.01)
        return q, ((q - x) ** 2).mean()

    def refresh(self):
        self.embed.copy_(self.embed_sum / self.cluster_size[:, None].clamp(min=1e-5))


def get_inputs():
    return [torch.randn(512, 32)]


def get_init_inputs():
    return [128, 32]
