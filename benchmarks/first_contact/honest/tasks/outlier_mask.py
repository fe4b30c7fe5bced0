import torch
import torch.nn as nn

ROWS, COLUMNS = 301, 1111

class Model(nn.Module):
    """Marks elements above a learned threshold of their column; the mask and the number of marks in each row."""
    def __init__(self, columns):
        super().__init__()
        self.threshold = nn.Parameter(torch.randn(columns) * 0.5)

    def forward(self, x):
        mask = (x.abs() > self.threshold) & torch.isfinite(x)
        return mask, mask.sum(dim=1)

def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]

def get_init_inputs():
    return [COLUMNS]
