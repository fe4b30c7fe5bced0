import torch
import torch.nn as nn

BATCH = 24
TOKENS = 729
DIM = 1152
HIDDEN = 4304


class Model(nn.Module):
    """
    Vision transformer MLP block in float16: LayerNorm, linear, tanh GELU,
    linear, layer scale, residual.
    """

    def __init__(self, dim, hidden):
        super().__init__()
        kw = dict(dtype=torch.float16)
        self.norm = nn.LayerNorm(dim, eps=1e-6, **kw)
        self.fc1 = nn.Linear(dim, hidden, **kw)
        self.act = nn.GELU(approximate="tanh")
        self.fc2 = nn.Linear(hidden, dim, **kw)
        self.scale = nn.Parameter(0.5 + torch.rand(dim).to(torch.float16))
        nn.init.normal_(self.norm.weight, 1.0, 0.1)
        nn.init.normal_(self.norm.bias, 0.0, 0.1)
        nn.init.normal_(self.fc1.weight, std=dim**-0.5)
        nn.init.normal_(self.fc2.weight, std=(2.0 / hidden) ** 0.5)

    def forward(self, x):
        y = self.fc2(self.act(self.fc1(self.norm(x))))
        return x + self.scale * y


def get_inputs():
    return [torch.randn(BATCH, TOKENS, DIM, dtype=torch.float16)]


def get_init_inputs():
    return [DIM, HIDDEN]
