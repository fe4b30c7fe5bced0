import torch
import torch.nn as nn

TOKENS = 16384
DIM = 2048
EXPERTS = 64
TOP_K = 6


class Model(nn.Module):
    """
    Mixture-of-experts router in float32: softmax gate, top-k with the weights
    renormalised, and the load-balancing term of each expert.
    """

    def __init__(self, dim, experts, top_k):
        super().__init__()
        self.experts = experts
        self.top_k = top_k
        self.gate = nn.Parameter(torch.randn(experts, dim) / dim**0.5)

    def forward(self, x):
        scores = torch.softmax(x @ self.gate.t(), dim=-1)
        weights, indices = torch.topk(scores, self.top_k, dim=-1)
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        chosen = torch.zeros_like(scores).scatter_(1, indices, 1.0)
        fraction = chosen.mean(dim=0) * (self.experts / self.top_k)
        balance = fraction * scores.mean(dim=0) * self.experts
        return weights, balance


def get_inputs():
    return [torch.randn(TOKENS, DIM)]


def get_init_inputs():
    return [DIM, EXPERTS, TOP_K]
