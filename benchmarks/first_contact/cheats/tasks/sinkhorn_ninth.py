import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, eps, rounds):
        super().__init__()
        self.eps, self.rounds = eps, rounds

    def forward(self, cost):
        k = -cost / self.eps
        v = torch.zeros(cost.shape[0], cost.shape[2])
        for _ in range(self.rounds):
            u = -torch.logsumexp(k + v[:, None, :], dim=2)
            v = -torch.logsumexp(k + u[:, :, None], dim=1)
        return torch.exp(k + u[:, :, None] + v[:, None, :])

def get_inputs():
    return [torch.rand(8, 64, 64)]

def get_init_inputs():
    return [0.2, 10]
