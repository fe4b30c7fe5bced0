import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """KL divergence between two categorical distributions given by their logits."""

    def __init__(self):
        super().__init__()

    def forward(self, p, q):
        return F.kl_div(torch.log_softmax(q, 1), torch.log_softmax(p, 1), log_target=True, reduction="batchmean")


def get_inputs():
    return [torch.randn(512, 2000), torch.randn(512, 2000)]


def get_init_inputs():
    return []
