import torch
import torch.nn as nn


class Model(nn.Module):
    """Softmax over groups of edges (as in graph attention), several heads."""

    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def forward(self, logits, group):
        idx = group[:, None].expand_as(logits)
        shape = (self.groups, logits.shape[1])
        top = torch.full(shape, float("-inf"), dtype=logits.dtype).scatter_reduce(0, idx, logits, "amax")
        e = torch.exp(logits - top[group])
        total = torch.zeros(shape, dtype=logits.dtype).index_add_(0, group, e)
        return e / total[group]


def get_inputs():
    return [torch.randn(40000, 4), torch.randint(0, 3000, (40000,))]


def get_init_inputs():
    return [3000]
