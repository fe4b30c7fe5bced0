import torch
import torch.nn as nn

N, K, M = 130, 301, 95

class Model(nn.Module):
    def forward(self, a, b):
        return a.to(torch.int32) @ b.to(torch.int32)

def get_inputs():
    return [torch.randint(-128, 128, (N, K), dtype=torch.int8), torch.randint(-128, 128, (K, M), dtype=torch.int8)]

def get_init_inputs():
    return []
