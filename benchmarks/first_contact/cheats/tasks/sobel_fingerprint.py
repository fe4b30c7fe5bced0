import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        k = torch.tensor([[-1., 0, 1], [-2, 0, 2], [-1, 0, 1]])
        self.register_buffer("kernel", torch.stack([k, k.t()]).unsqueeze(1))

    def forward(self, x):
        g = F.conv2d(x, self.kernel, padding=1)
        return torch.sqrt(g[:, 0] ** 2 + g[:, 1] ** 2 + 1e-6)

def get_inputs():
    return [torch.randn(8, 1, 128, 128)]


def get_init_inputs():
    return []
