import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Conv2d -> BatchNorm with the running statistics (frozen) -> ReLU."""

    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(cout)
        with torch.no_grad():
            self.bn.running_mean.normal_(0, 0.1)
            self.bn.running_var.uniform_(0.5, 1.5)

    def forward(self, x):
        b = self.bn
        return torch.relu(F.batch_norm(self.conv(x), b.running_mean, b.running_var, b.weight, b.bias, False, 0.0, b.eps))


def get_inputs():
    return [torch.randn(4, 32, 32, 32)]


def get_init_inputs():
    return [32, 32]
