import torch, torch.nn as nn, torch.nn.functional as F
class Model(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope
    def forward(self, feat, src, dst, el, er):
        N, H, D = feat.shape
        e = F.leaky_relu(el[src] + er[dst], self.slope)
        m = torch.full((N, H), float("-inf")).scatter_reduce(0, dst[:, None].expand(-1, H), e, "amax")
        w = torch.exp(e - m[dst])
        z = torch.zeros(N, H).index_add(0, dst, w)
        a = w / z[dst]
        return torch.zeros(N, H, D).index_add(0, dst, feat[src] * a[..., None]), a
def get_inputs():
    N, E, H = 200, 1600, 4
    return [torch.randn(N, H, 16), torch.randint(0, N, (E,)), torch.randint(0, N, (E,)), torch.randn(N, H), torch.randn(N, H)]
def get_init_inputs():
    return [0.2]
