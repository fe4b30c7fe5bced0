import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 64
CHANNELS = 512
SIZE = 45
BINS = (1, 2, 3)
HIDDEN = 1280
CLASSES = 1000


class Model(nn.Module):
    """
    Spatial pyramid pooling head in float16: adaptive average pools of several
    sizes, flattened and concatenated, LayerNorm, MLP with Hardswish.
    """

    def __init__(self, channels, bins, hidden, classes):
        super().__init__()
        dt = torch.float16
        self.bins = bins
        feats = channels * sum(b * b for b in bins)
        self.norm = nn.LayerNorm(feats, dtype=dt)
        self.fc1 = nn.Linear(feats, hidden, dtype=dt)
        self.fc2 = nn.Linear(hidden, classes, dtype=dt)
        nn.init.normal_(self.fc1.weight, std=1.4 * feats**-0.5)
        nn.init.normal_(self.fc2.weight, std=1.4 * hidden**-0.5)

    def forward(self, x):
        pooled = [F.adaptive_avg_pool2d(x, b).flatten(1) for b in self.bins]
        y = self.norm(torch.cat(pooled, dim=1))
        return self.fc2(F.hardswish(self.fc1(y)))


def get_inputs():
    x = torch.randn(BATCH, CHANNELS, SIZE, SIZE) + torch.randn(BATCH, CHANNELS, 1, 1)
    return [x.half()]


def get_init_inputs():
    return [CHANNELS, BINS, HIDDEN, CLASSES]
