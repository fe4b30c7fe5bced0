import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, classes, smooth):
        super().__init__()
        self.classes, self.smooth = classes, smooth

    def forward(self, idx, val):
        y = torch.full((idx.shape[0], self.classes), self.smooth / self.classes)
        return y.scatter_add_(1, idx, val)


def get_inputs():
    return [torch.randint(0, 2000, (512, 4)), torch.rand(512, 4)]


def get_init_inputs():
    return [2000, 0.1]
