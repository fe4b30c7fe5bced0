import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, M, e):
        E = M + e * torch.sin(M)
        for _ in range(6):
            E = E - (E - e * torch.sin(E) - M) / (1 - e * torch.cos(E))
        return E

def get_inputs():
    return [torch.rand(8192, dtype=torch.float64) * 6.28, torch.rand(8192, dtype=torch.float64) * 0.6]


def get_init_inputs():
    return []
