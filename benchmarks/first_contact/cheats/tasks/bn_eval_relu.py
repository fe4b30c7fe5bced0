import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """BatchNorm with its running statistics (inference), residual add, ReLU."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x, skip):
        y = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, training=False)
        return torch.relu(y + skip)


def get_inputs():
    return [torch.randn(4, 64, 32, 32), torch.randn(4, 64, 32, 32)]


def get_init_inputs():
    return [64]
