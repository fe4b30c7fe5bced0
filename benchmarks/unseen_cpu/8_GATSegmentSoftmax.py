import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Graph attention: per-edge scores, segment softmax with scatter_reduce, weighted index_add aggregation, skip, ELU."""

    def __init__(self, c_in, heads, c_head):
        super().__init__()
        self.heads, self.c = heads, c_head
        self.lin = nn.Linear(c_in, heads * c_head, bias=False)
        self.a_src = nn.Parameter(torch.randn(heads, c_head) * 0.2)
        self.a_dst = nn.Parameter(torch.randn(heads, c_head) * 0.2)
        self.skip = nn.Linear(c_in, heads * c_head)

    def forward(self, x, edges):
        N = x.shape[0]
        src, dst = edges[0], edges[1]
        h = self.lin(x).view(N, self.heads, self.c)
        s = (h * self.a_src).sum(-1)
        d = (h * self.a_dst).sum(-1)
        e = F.leaky_relu(s[src] + d[dst], 0.2)
        ix = dst[:, None].expand(-1, self.heads)
        top = torch.full((N, self.heads), float("-inf"), device=x.device, dtype=x.dtype)
        top = top.scatter_reduce(0, ix, e, reduce="amax", include_self=True)
        w = torch.exp(e - top[dst])
        den = torch.zeros(N, self.heads, device=x.device, dtype=x.dtype).scatter_add(0, ix, w)
        w = w / (den[dst] + 1e-16)
        msg = (h[src] * w[..., None]).view(-1, self.heads * self.c)
        out = torch.zeros(N, self.heads * self.c, device=x.device, dtype=x.dtype).index_add(0, dst, msg)
        return F.elu(out + self.skip(x))


def get_inputs():
    return [torch.randn(2000, 64), torch.randint(0, 2000, (2, 12000))]


def get_init_inputs():
    return [64, 4, 16]
