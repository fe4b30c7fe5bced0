import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, size, stride, padding):
        super().__init__()
        self.pool = nn.MaxPool2d(size, stride, padding)

    def forward(self, x):
        return self.pool(x)

def get_inputs():
    return [torch.rand(8, 32, 112, 112)]

def get_init_inputs():
    return [3, 2, 1]
