import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(128, 32))
        self.register_buffer("size", torch.ones(128))
        self.register_buffer("total", torch.randn(128, 32))

    def forward(self, x):
        idx = torch.cdist(x, self.codes).argmin(1)
        out = self.codes[idx]
        if self.training:
            hot = F.one_hot(idx, 128).to(x.dtype)
            self.size.mul_(0.99).add_(hot.sum(0), alpha=0.01)
            self.total.mul_(0.99).add_(hot.t() @ x, alpha=0.01)
            self.codes.copy_(self.total / self.size.unsqueeze(1))
        return out

def get_inputs():
    return [torch.randn(2048, 32)]


def get_init_inputs():
    return []
