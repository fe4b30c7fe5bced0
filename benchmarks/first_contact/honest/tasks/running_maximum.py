import torch
import torch.nn as nn

BATCH, LENGTH, WIDTH = 9, 400, 37

class Model(nn.Module):
    def forward(self, x):
        values, indices = torch.cummax(x, dim=1)
        return values, indices

def get_inputs():
    return [torch.randn(BATCH, LENGTH, WIDTH)]

def get_init_inputs():
    return []
