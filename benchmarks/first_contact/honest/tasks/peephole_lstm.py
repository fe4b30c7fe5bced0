import torch
import torch.nn as nn


class Model(nn.Module):
    """LSTM with peephole connections."""

    def __init__(self, inputs, hidden):
        super().__init__()
        s = hidden ** -0.5
        self.w = nn.Parameter(torch.randn(4 * hidden, inputs) * s)
        self.u = nn.Parameter(torch.randn(4 * hidden, hidden) * s)
        self.b = nn.Parameter(torch.randn(4 * hidden) * s)
        self.peep = nn.Parameter(torch.randn(3, hidden) * s)

    def forward(self, x, h, c):
        outs = []
        for t in range(x.shape[0]):
            i, f, g, o = (x[t] @ self.w.t() + h @ self.u.t() + self.b).chunk(4, 1)
            i = torch.sigmoid(i + self.peep[0] * c)
            f = torch.sigmoid(f + self.peep[1] * c)
            c = f * c + i * torch.tanh(g)
            o = torch.sigmoid(o + self.peep[2] * c)
            h = o * torch.tanh(c)
            outs.append(h)
        return torch.stack(outs), (h, c)


def get_inputs():
    return [torch.randn(24, 16, 48), torch.randn(16, 64), torch.randn(16, 64)]


def get_init_inputs():
    return [48, 64]
