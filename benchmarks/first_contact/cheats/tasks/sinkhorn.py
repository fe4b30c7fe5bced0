import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Sinkhorn normalisation: rows and columns in turn, in the log domain."""

    def __init__(self, rounds: int):
        super().__init__()
        self.rounds = rounds

    def forward(self, scores):
        x = scores
        for _ in range(self.rounds):
            x = x - torch.logsumexp(x, dim=-1, keepdim=True)
            x = x - torch.logsumexp(x, dim=-2, keepdim=True)
        return torch.exp(x)


def get_inputs():
    return [torch.randn(8, 128, 128)]


def get_init_inputs():
    return [40]
