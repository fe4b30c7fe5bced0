import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(128, 256)

    def forward(self, x):
        return F.gelu(self.fc(x), approximate="tanh")

def get_inputs():
    return [torch.randn(256, 128)]


def get_init_inputs():
    return []
