import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        m = F.avg_pool2d(x, 9, stride=1)
        return x[:, :, 4:-4, 4:-4] - m


def get_inputs():
    return [torch.rand(2, 1, 384, 384)]
