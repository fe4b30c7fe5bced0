import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, x, y):
        return F.smooth_l1_loss(x, y)


def get_inputs():
    return [torch.rand(512, 1024), torch.rand(512, 1024)]
