import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """BatchNorm1d in training, with a cumulative moving average (momentum=None)."""
    def __init__(self, columns):
        super().__init__()
        self.bn = nn.BatchNorm1d(columns, momentum=None)
        self.train()
    def forward(self, x):
        return self.bn(x)

def get_inputs():
    return [torch.randn(8192, 512)]
def get_init_inputs():
    return [512]
