import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """1x1 convolution, batch normalisation with running statistics, ReLU."""

    def __init__(self, c_in, c_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(c_out, c_in) / c_in ** 0.5)
        self.scale = nn.Parameter(torch.rand(c_out) + 0.5)
        self.shift = nn.Parameter(torch.randn(c_out))
        self.register_buffer("running_mean", torch.zeros(c_out))
        self.register_buffer("running_var", torch.ones(c_out))

    def forward(self, x):
        x = F.conv2d(x, self.weight[:, :, None, None])
        return F.relu(F.batch_norm(x, self.running_mean, self.running_var, self.scale, self.shift, False, 0.1, 1e-5))


def get_inputs():
    return [torch.randn(8, 64, 56, 56)]


def get_init_inputs():
    return [64, 64]
