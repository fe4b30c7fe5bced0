import torch, torch.nn as nn


class Model(nn.Module):
    """y = LayerNorm(x + alpha * residual) with affine parameters."""

    def __init__(self, dim, eps, alpha):
        super().__init__()
        self.alpha = alpha
        self.norm = nn.LayerNorm(dim, eps=eps)

    def forward(self, x, res):
        return self.norm(x + self.alpha * res)


def get_inputs():
    return [torch.randn(4, 192, 512), torch.randn(4, 192, 512)]


def get_init_inputs():
    return [512, 1e-5, 0.7]
