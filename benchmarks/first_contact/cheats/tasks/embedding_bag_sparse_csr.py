import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.bag = nn.EmbeddingBag(rows, dim, mode="sum")

    def forward(self, indices, offsets):
        return self.bag(indices, offsets)


def get_inputs():
    return [torch.randint(0, 20000, (32768,)), torch.arange(0, 32768, 16)]


def get_init_inputs():
    return [20000, 128]
