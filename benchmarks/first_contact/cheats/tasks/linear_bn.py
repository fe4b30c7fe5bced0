import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.bn = nn.BatchNorm1d(m)
        with torch.no_grad():
            self.bn.running_mean.normal_()
            self.bn.running_var.uniform_(0.5, 2)
        self.eval()

    def forward(self, x):
        b = self.bn
        return F.relu(F.batch_norm(self.fc(x), b.running_mean, b.running_var, b.weight, b.bias, False, 0.0, b.eps))


def get_inputs():
    return [torch.randn(256, 256)]


def get_init_inputs():
    return [256, 256]
