import torch, torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.softmax(x * self.scale, dim=-1)

def get_inputs():
    return [torch.randn(512, 2048)]

def get_init_inputs():
    return [0.7]
