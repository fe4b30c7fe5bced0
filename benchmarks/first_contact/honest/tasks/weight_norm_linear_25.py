import torch, torch.nn as nn, torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, inp, out):
        super().__init__()
        self.weight_v = nn.Parameter(torch.randn(out, inp) * 0.05)
        self.weight_g = nn.Parameter(torch.rand(out, 1) + 0.5)
        self.bias = nn.Parameter(torch.randn(out) * 0.1)

    def forward(self, x):
        w = self.weight_v * (self.weight_g / self.weight_v.norm(dim=1, keepdim=True))
        return F.elu(F.linear(x, w, self.bias))


def get_inputs():
    return [torch.randn(6, 512)]


def get_init_inputs():
    return [512, 512]
