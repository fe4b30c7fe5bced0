import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Phases wrapped into one period each: remainder with the sign of the divisor."""
    def forward(self, x, period):
        return torch.remainder(x, period)

def get_inputs():
    return [torch.randn(524288), torch.rand(524288) + 1.0]
def get_init_inputs():
    return []
