import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.loss = nn.HuberLoss(delta=0.5)

    def forward(self, p, t):
        return self.loss(p, t)


def get_inputs():
    return [torch.randn(256, 2048), torch.randn(256, 2048)]
