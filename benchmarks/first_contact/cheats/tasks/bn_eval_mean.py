import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """BatchNorm2d with its running statistics, then ReLU."""
    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.eval()
    def forward(self, x):
        b = self.bn
        return F.relu(F.batch_norm(x, b.running_mean, b.running_var, b.weight, b.bias, False, 0.0, b.eps))

def get_inputs():
    return [torch.randn(16, 64, 64, 64)]
def get_init_inputs():
    return [64]
