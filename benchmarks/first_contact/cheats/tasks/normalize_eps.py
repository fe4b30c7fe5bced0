import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Rows divided by max(their length, 1e-12)."""
    def forward(self, x):
        return F.normalize(x, p=2.0, dim=1, eps=1e-12)

def get_inputs():
    return [torch.randn(2048, 2048)]
def get_init_inputs():
    return []
