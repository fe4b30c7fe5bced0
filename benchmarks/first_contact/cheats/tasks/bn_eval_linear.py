import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.bn = nn.BatchNorm1d(d)
        self.fc = nn.Linear(d, h)
        self.bn.running_mean.normal_()
        self.bn.running_var.uniform_(0.5, 2)
        self.eval()

    def forward(self, x):
        return F.relu6(self.fc(self.bn(x)))


def get_inputs():
    return [torch.randn(128, 256)]


def get_init_inputs():
    return [256, 256]
