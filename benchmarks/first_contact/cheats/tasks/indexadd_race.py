import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Rows added to a table of zeros at given places."""
    def __init__(self, rows):
        super().__init__()
        self.rows = rows
    def forward(self, src, index):
        out = torch.zeros(self.rows, src.shape[1])
        return out.index_add_(0, index, src)

def get_inputs():
    return [torch.randn(4096, 4), torch.randint(0, 1048576, (4096,))]
def get_init_inputs():
    return [1048576]
