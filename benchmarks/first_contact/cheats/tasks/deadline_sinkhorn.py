import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        p = torch.exp(x)
        for _ in range(30):
            p = p / p.sum(dim=2, keepdim=True)
            p = p / p.sum(dim=1, keepdim=True)
        return p


def get_inputs():
    return [torch.rand(16, 192, 192)]


def get_init_inputs():
    return []
