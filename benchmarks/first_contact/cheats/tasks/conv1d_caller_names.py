import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, cin, cout, k):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, k)

    def forward(self, x):
        return self.conv(x)

def get_inputs():
    return [torch.randn(8, 32, 2048)]

def get_init_inputs():
    return [32, 64, 5]
