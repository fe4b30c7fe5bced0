import torch, torch.nn as nn, torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, delta):
        super().__init__()
        self.delta = delta

    def forward(self, pred, target, weight):
        loss = F.huber_loss(pred, target, reduction="none", delta=self.delta)
        return (loss * weight).sum() / weight.sum()


def get_inputs():
    return [torch.randn(512, 512) * 2, torch.randn(512, 512), torch.rand(512, 512)]


def get_init_inputs():
    return [0.75]
