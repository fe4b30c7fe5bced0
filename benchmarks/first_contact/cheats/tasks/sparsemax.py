import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        z = x.sort(dim=-1, descending=True).values
        cs = z.cumsum(-1) - 1
        k = torch.arange(1, x.size(-1) + 1, dtype=x.dtype)
        s = (k * z > cs).sum(-1, keepdim=True)
        tau = cs.gather(-1, s - 1) / s
        return torch.relu(x - tau)


def get_inputs():
    return [torch.randn(256, 256) * 2]


def get_init_inputs():
    return []
