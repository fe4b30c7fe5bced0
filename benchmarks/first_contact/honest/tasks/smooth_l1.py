import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Mean smooth L1 loss."""

    def __init__(self, beta: float):
        super().__init__()
        self.beta = beta

    def forward(self, prediction, target):
        return F.smooth_l1_loss(prediction, target, beta=self.beta)


def get_inputs():
    return [torch.randn(300, 1111), torch.randn(300, 1111)]


def get_init_inputs():
    return [0.5]
