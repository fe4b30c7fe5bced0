import torch, torch.nn as nn


class Model(nn.Module):
    """Mean, unbiased variance, skewness and excess kurtosis of each row."""

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        d = x - mean
        m2, m3, m4 = (d ** 2).mean(-1), (d ** 3).mean(-1), (d ** 4).mean(-1)
        n = x.shape[-1]
        return mean.squeeze(-1), m2 * n / (n - 1), m3 / m2 ** 1.5, m4 / m2 ** 2 - 3


def get_inputs():
    return [torch.randn(256, 1024).exp()]
