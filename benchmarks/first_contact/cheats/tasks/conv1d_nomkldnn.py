import torch, torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cout, cin, 5) * 0.1)
        self.bias = nn.Parameter(torch.randn(cout))

    def forward(self, x):
        return F.conv1d(x, self.weight, self.bias, padding=2)

def get_inputs():
    return [torch.randn(16, 16, 1024)]

def get_init_inputs():
    return [16, 32]
