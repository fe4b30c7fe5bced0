import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, INNER, OUTER = 120, 256, 376

class Model(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.linear = nn.Linear(inner, outer)

    def forward(self, x):
        return F.gelu(self.linear(x))

def get_inputs():
    return [torch.randn(BATCH, INNER)]

def get_init_inputs():
    return [INNER, OUTER]
