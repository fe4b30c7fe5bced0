import torch
import torch.nn as nn

STEPS, WIDTH, ACTIVE = 256, 4096, 32


class Model(nn.Module):
    """Impulse response of a leaky integrator: y[t] = (y[t-1] + x[t]) / 2."""

    def forward(self, x):
        y = torch.zeros_like(x[0])
        out = []
        for t in range(x.shape[0]):
            y = 0.5 * y + 0.5 * x[t]
            out.append(y)
        return torch.stack(out)


def get_inputs():
    x = torch.zeros(STEPS, WIDTH)
    x[:ACTIVE] = torch.randn(ACTIVE, WIDTH)
    return [x]


def get_init_inputs():
    return []
