import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x, indices):
        return torch.nn.functional.max_unpool2d(x, indices, 2, stride=2)


def get_inputs():
    x = torch.randn(8, 32, 96, 96)
    y, i = torch.nn.functional.max_pool2d(x, 2, stride=2, return_indices=True)
    return [y, i]


def get_init_inputs():
    return []
