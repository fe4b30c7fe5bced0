import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        s = x.sort(-1).values
        n = x.shape[-1]
        lo, med, hi = s[:, n // 4], s[:, n // 2], s[:, 3 * n // 4]
        return (x - med[:, None]) / (hi - lo + 1e-6)[:, None]


def get_inputs():
    return [torch.randn(32, 2048)]
