import torch, torch.nn as nn, torch.nn.functional as F


class Model(nn.Module):
    """Linear layer divided by its largest singular value; training refines the buffer u by power iterations."""

    def __init__(self, inp, out, iters):
        super().__init__()
        self.iters = iters
        self.weight = nn.Parameter(torch.randn(out, inp) * 0.1)
        self.bias = nn.Parameter(torch.zeros(out))
        self.register_buffer("u", F.normalize(torch.randn(out), dim=0))

    def forward(self, x):
        u = self.u
        n = self.iters if self.training else 0
        for _ in range(n):
            v = F.normalize(self.weight.t().mv(u), dim=0, eps=1e-12)
            u = F.normalize(self.weight.mv(v), dim=0, eps=1e-12)
        if self.training:
            with torch.no_grad():
                self.u.copy_(u)
        v = F.normalize(self.weight.t().mv(u), dim=0, eps=1e-12)
        sigma = torch.dot(u, self.weight.mv(v))
        return F.linear(x, self.weight / sigma, self.bias)


def get_inputs():
    return [torch.randn(4, 192)]


def get_init_inputs():
    return [192, 160, 12]
