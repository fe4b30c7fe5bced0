import torch, torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()


    def forward(self, L, b):
        return torch.linalg.solve_triangular(L, b, upper=False)

def get_inputs():
    return [torch.tril(torch.randn(8, 160, 160)) * 0.05 + torch.eye(160), torch.randn(8, 160, 64)]

def get_init_inputs():
    return []
