import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return F.cosine_similarity(a, b, dim=-1)


def get_inputs():
    return [torch.randn(1024, 384), torch.randn(1024, 384)]
