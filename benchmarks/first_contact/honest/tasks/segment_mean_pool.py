import torch, torch.nn as nn


class Model(nn.Module):
    """Mean and maximum of node features per graph (graphs without nodes: zeros)."""

    def __init__(self, graphs):
        super().__init__()
        self.graphs = graphs

    def forward(self, x, index):
        g, d = self.graphs, x.shape[1]
        total = x.new_zeros(g, d).index_add_(0, index, x)
        count = torch.bincount(index, minlength=g)
        mean = total / count.clamp(min=1).unsqueeze(1)
        top = x.new_zeros(g, d).scatter_reduce_(0, index[:, None].expand(-1, d), x, "amax", include_self=False)
        return mean, top, count


def get_inputs():
    return [torch.randn(2048, 64), torch.randint(0, 100, (2048,))]


def get_init_inputs():
    return [120]
