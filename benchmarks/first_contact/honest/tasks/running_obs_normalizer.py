import torch, torch.nn as nn


class Model(nn.Module):
    """Observation normaliser of reinforcement learning: parallel-variance update of buffers, then clip."""

    def __init__(self, dim, clip):
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))
        self.register_buffer("count", torch.tensor(1e-4))

    def forward(self, x):
        if self.training:
            n = x.shape[0]
            bv, bm = torch.var_mean(x, dim=0, unbiased=False)
            delta, tot = bm - self.mean, self.count + n
            m2 = self.var * self.count + bv * n + delta ** 2 * self.count * n / tot
            self.mean.copy_(self.mean + delta * n / tot)
            self.var.copy_(m2 / tot)
            self.count.copy_(tot)
        return torch.clamp((x - self.mean) / torch.sqrt(self.var + 1e-8), -self.clip, self.clip)


def get_inputs():
    return [torch.randn(4096, 64) * 3 + 1]


def get_init_inputs():
    return [64, 5.0]
