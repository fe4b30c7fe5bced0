import torch, torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()


    def forward(self, x):
        s = torch.sort(x, dim=-1)[0]
        k = x.shape[-1] // 10
        return s[:, k:-k].mean(-1)

def get_inputs():
    return [torch.randn(32, 2000)]

def get_init_inputs():
    return []
