import torch, torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, x):
        return torch.bincount(x.reshape(-1), minlength=self.bins)

def get_inputs():
    return [torch.randint(0, 512, (2000, 500))]

def get_init_inputs():
    return [512]
