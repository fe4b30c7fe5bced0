import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Cholesky factors of a batch of positive definite matrices."""
    def forward(self, a):
        return torch.linalg.cholesky(a)

def get_inputs():
    g = torch.randn(16, 160, 160)
    return [g @ g.transpose(1, 2) / 160 + 0.5 * torch.eye(160)]
def get_init_inputs():
    return []
