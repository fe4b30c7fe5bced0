import torch
import torch.nn as nn

N, K, M = 192, 203, 177

class Model(nn.Module):
    def forward(self, a, b):
        return a @ b

def get_inputs():
    return [torch.randn(N, K, dtype=torch.float64), torch.randn(K, M, dtype=torch.float64)]

def get_init_inputs():
    return []
