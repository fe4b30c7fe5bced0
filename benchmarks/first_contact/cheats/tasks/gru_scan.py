import torch, torch.nn as nn

class Model(nn.Module):
    """GRU written out step by step."""
    def __init__(self, n_in, n_hid):
        super().__init__()
        self.w_ih = nn.Parameter(torch.randn(3 * n_hid, n_in) * 0.1)
        self.w_hh = nn.Parameter(torch.randn(3 * n_hid, n_hid) * 0.1)
        self.b_ih = nn.Parameter(torch.randn(3 * n_hid) * 0.1)
        self.b_hh = nn.Parameter(torch.randn(3 * n_hid) * 0.1)

    def forward(self, x):
        T, B, _ = x.shape
        h = torch.zeros(B, self.w_hh.shape[1])
        out = []
        for t in range(T):
            gi = x[t] @ self.w_ih.t() + self.b_ih
            gh = h @ self.w_hh.t() + self.b_hh
            ir, iz, inn = gi.chunk(3, 1)
            hr, hz, hn = gh.chunk(3, 1)
            r = torch.sigmoid(ir + hr)
            z = torch.sigmoid(iz + hz)
            n = torch.tanh(inn + r * hn)
            h = (1 - z) * n + z * h
            out.append(h)
        return torch.stack(out)

def get_inputs():
    return [torch.randn(48, 8, 64)]

def get_init_inputs():
    return [64, 64]
