import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Entropy of each row's softmax, and its most likely class."""

    def forward(self, x):
        log_p = F.log_softmax(x, -1)
        return -(log_p.exp() * log_p).sum(-1), x.argmax(-1)


def get_inputs():
    return [torch.randn(400, 900)]


def get_init_inputs():
    return []
