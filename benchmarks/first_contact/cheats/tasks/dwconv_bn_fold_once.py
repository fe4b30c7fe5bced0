import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv1d(c, c, 5, padding=2, groups=c, bias=False)
        self.bn = nn.BatchNorm1d(c)
        self.bn.running_mean.normal_(0, 0.1)
        self.bn.running_var.uniform_(0.5, 1.5)

    def forward(self, x):
        b = self.bn
        y = self.conv(x)
        return F.relu(F.batch_norm(y, b.running_mean, b.running_var, b.weight, b.bias, False, 0.0, b.eps))


def get_inputs():
    return [torch.randn(4, 128, 1024)]


def get_init_inputs():
    return [128]
