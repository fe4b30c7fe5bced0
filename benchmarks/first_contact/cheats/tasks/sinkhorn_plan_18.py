import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, cost):
        k = -cost / 0.5
        f = torch.zeros_like(cost[..., 0])
        g = torch.zeros_like(cost[..., 0])
        for _ in range(20):
            f = -torch.logsumexp(k + g[:, None, :], 2)
            g = -torch.logsumexp(k + f[:, :, None], 1)
        return torch.exp(k + f[:, :, None] + g[:, None, :])


def get_inputs():
    return [torch.rand(4, 64, 64)]
