import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS, COLUMNS = 512, 777

class Model(nn.Module):
    def forward(self, x):
        return F.gelu(x)

def get_inputs():
    return [(torch.randn(ROWS, COLUMNS) * 2).to(torch.bfloat16)]

def get_init_inputs():
    return []
