import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, idx):
        return torch.zeros(512, x.shape[1]).index_add(0, idx, x)


def get_inputs():
    return [torch.randn(4096, 64), torch.randint(0, 512, (4096,))]
