import torch
import torch.nn as nn


class Model(nn.Module):
    """Weighted bags of embeddings."""

    def __init__(self, rows, dim):
        super().__init__()
        self.bag = nn.EmbeddingBag(rows, dim, mode="sum")

    def forward(self, idx, offsets, weights):
        return self.bag(idx, offsets, per_sample_weights=weights)


def get_inputs():
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.sort(torch.randint(0, 200000, (7999,))).values])
    return [torch.randint(0, 8000, (200000,)), offsets, torch.rand(200000)]


def get_init_inputs():
    return [8000, 64]
