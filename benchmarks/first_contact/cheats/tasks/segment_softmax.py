import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, n=1000):
        super().__init__()
        self.n = n

    def forward(self, e, index):
        m = torch.full((self.n, 4), float("-inf")).scatter_reduce(0, index[:, None].expand_as(e), e, "amax")
        p = torch.exp(e - m[index])
        s = torch.zeros(self.n, 4).index_add_(0, index, p)
        return p / (s[index] + 1e-16)


def get_inputs():
    return [torch.randn(12000, 4), torch.randint(0, 1000, (12000,)).sort().values]


def get_init_inputs():
    return [1000]
