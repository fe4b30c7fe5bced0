import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, n=20000, d=64):
        super().__init__()
        self.emb = nn.EmbeddingBag(n, d, mode="mean")

    def forward(self, idx):
        return self.emb(idx)


def get_inputs():
    return [torch.randint(0, 20000, (1024, 40))]


def get_init_inputs():
    return [20000, 64]
