import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.a = nn.Linear(width, hidden)
        self.b = nn.Linear(hidden, width)

    def forward(self, x):
        return torch.sigmoid(self.b(torch.relu(self.a(x))))


def get_inputs():
    return [torch.randn(256, 512)]


def get_init_inputs():
    return [512, 1024]
