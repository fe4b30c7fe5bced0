import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        h, out = x[:, 0], [x[:, 0]]
        for t in range(1, x.shape[1]):
            h = torch.lerp(h, x[:, t], 0.1)
            out.append(h)
        return torch.stack(out, 1)


def get_inputs():
    return [torch.randn(32, 64, 128)]
