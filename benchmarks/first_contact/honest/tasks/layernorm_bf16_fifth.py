import torch
import torch.nn as nn

ROWS, WIDTH = 513, 770

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width, dtype=torch.bfloat16)

    def forward(self, x):
        return self.norm(x)

def get_inputs():
    return [torch.randn(ROWS, WIDTH).to(torch.bfloat16)]

def get_init_inputs():
    return [WIDTH]
