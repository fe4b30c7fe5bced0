import torch
import torch.nn as nn


class Model(nn.Module):
    """One LAMB step as a function: new weights, first and second moments."""

    def __init__(self, lr, beta1, beta2, eps, decay):
        super().__init__()
        self.lr, self.beta1, self.beta2, self.eps, self.decay = lr, beta1, beta2, eps, decay

    def forward(self, w, g, m, v):
        m = self.beta1 * m + (1 - self.beta1) * g
        v = self.beta2 * v + (1 - self.beta2) * g * g
        u = m / (v.abs().sqrt() + self.eps) + self.decay * w
        wn, un = w.norm(), u.norm()
        ratio = torch.where((wn > 0) & (un > 0), wn / un, torch.ones_like(wn))
        return w - self.lr * ratio * u, m, v


def get_inputs():
    return [torch.randn(512, 768), torch.randn(512, 768), torch.randn(512, 768) * 0.1, torch.rand(512, 768) * 0.01]


def get_init_inputs():
    return [1e-2, 0.9, 0.99, 1e-6, 0.01]
