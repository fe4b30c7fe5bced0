import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        lp = torch.log_softmax(x, -1)
        return -(lp.exp() * lp).sum(-1)


def get_inputs():
    return [torch.randn(256, 1024)]
