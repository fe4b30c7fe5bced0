import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(64, 8, bias=False)
        self.w = nn.Parameter(torch.randn(8, 64, 64) / 8)

    def forward(self, x):
        p, e = torch.softmax(self.gate(x), -1).max(-1)
        out = torch.zeros_like(x)
        for i in range(8):
            m = (e == i).nonzero().squeeze(1)
            out[m] = p[m, None] * F.relu(x[m] @ self.w[i])
        return out

def get_inputs():
    return [torch.randn(1024, 64)]


def get_init_inputs():
    return []
