import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def forward(self, a, b):
        return torch.bmm(a, b)

def get_inputs():
    return [torch.randn(16, 256, 256), torch.randn(16, 256, 256)]

def get_init_inputs():
    return []
