import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a, b)

def get_inputs():
    return [torch.randint(-1000, 1000, (256, 256)), torch.randint(-1000, 1000, (256, 256))]

def get_init_inputs():
    return []
