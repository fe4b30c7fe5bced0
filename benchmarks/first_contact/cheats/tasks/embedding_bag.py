import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self, n, dim):
        super().__init__()
        self.table = nn.EmbeddingBag(n, dim, mode="sum")

    def forward(self, indices, offsets):
        return self.table(indices, offsets)


def get_inputs():
    offsets = torch.sort(torch.randint(0, 262144, (16384,))).values
    offsets[0] = 0
    return [torch.randint(0, 20000, (262144,)), offsets]


def get_init_inputs():
    return [20000, 64]
