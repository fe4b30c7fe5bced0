import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, num, dim):
        super().__init__()
        self.emb = nn.EmbeddingBag(num, dim, mode="sum")

    def forward(self, idx):
        return self.emb(idx)


def get_inputs():
    return [torch.randint(0, 20000, (8192, 32))]


def get_init_inputs():
    return [20000, 64]
