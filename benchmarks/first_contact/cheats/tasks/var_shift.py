import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Unbiased variance and mean of every row."""
    def forward(self, x):
        return torch.var_mean(x, dim=1)

def get_inputs():
    return [torch.randn(256, 8192)]
def get_init_inputs():
    return []
