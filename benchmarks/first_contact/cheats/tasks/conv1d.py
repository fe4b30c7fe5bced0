import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, ci, co, k):
        super().__init__()
        self.conv = nn.Conv1d(ci, co, k, padding=k // 2)

    def forward(self, x):
        return self.conv(x)

def get_inputs():
    return [torch.randn(4, 8, 8192)]

def get_init_inputs():
    return [8, 8, 33]
