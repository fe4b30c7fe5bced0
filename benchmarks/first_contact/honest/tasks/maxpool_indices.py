import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, CHANNELS, HEIGHT, WIDTH = 6, 17, 61, 47

class Model(nn.Module):
    def forward(self, x):
        values, indices = F.max_pool2d(x, 3, stride=2, padding=1, return_indices=True)
        return values, indices

def get_inputs():
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]

def get_init_inputs():
    return []
