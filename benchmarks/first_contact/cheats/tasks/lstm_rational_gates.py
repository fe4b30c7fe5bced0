import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.wi = nn.Parameter(torch.randn(4 * width, width) * 0.07)
        self.wh = nn.Parameter(torch.randn(4 * width, width) * 0.07)
        self.b = nn.Parameter(torch.randn(4 * width) * 0.07)

    def forward(self, x):
        h = c = torch.zeros_like(x[:, 0])
        out = []
        for t in range(x.shape[1]):
            i, f, g, o = (F.linear(x[:, t], self.wi, self.b) + F.linear(h, self.wh)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            out.append(h)
        return torch.stack(out, 1)


def get_inputs():
    return [torch.randn(16, 64, 64)]


def get_init_inputs():
    return [64]
