import torch
import torch.nn as nn

N = 256
STEPS = 60


class Model(nn.Module):
    """Power iteration, a fixed number of steps from a given start."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def forward(self, a, x):
        for _ in range(self.steps):
            x = a @ x
            x = x / (x.norm() + 1e-12)
        return x


def get_inputs():
    g = torch.randn(N, N)
    u = torch.randn(N)
    a = g @ g.t() / N + 12 * torch.outer(u, u) / u.dot(u)
    return [a, torch.randn(N)]


def get_init_inputs():
    return [STEPS]
