import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """A tone curve for 8-bit images."""
    def __init__(self):
        super().__init__()
        self.register_buffer("curve", (255 * (torch.arange(256) / 255.0) ** 0.45).round().to(torch.uint8))

    def forward(self, x):
        return self.curve[x.long()]

def get_inputs():
    return [torch.randint(0, 256, (2, 3, 256, 256), dtype=torch.uint8)]

def get_init_inputs():
    return []
