import torch, torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.MaxPool2d(3, stride=2, padding=1, return_indices=True)

    def forward(self, x):
        y, idx = self.pool(x)
        return y, idx


def get_inputs():
    return [torch.randn(4, 32, 56, 56)]
