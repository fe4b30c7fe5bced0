import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x, y):
        return F.mse_loss(x, y)


def get_inputs():
    return [torch.randn(1024, 1024), torch.randn(1024, 1024)]
