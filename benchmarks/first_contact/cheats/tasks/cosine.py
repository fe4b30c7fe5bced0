import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.CosineSimilarity(dim=1, eps=1e-8)

    def forward(self, a, b):
        return self.c(a, b)


def get_inputs():
    return [torch.randn(1024, 256), torch.randn(1024, 256)]
