import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2
CLASSES = 14
DEPTH = 96
HEIGHT = 128
WIDTH = 128
SMOOTH = 1e-5


class Model(nn.Module):
    """
    Volumetric segmentation loss: soft dice for each foreground class plus the
    voxel mean of cross entropy for each sample. Returns (batch, classes - 1).
    """

    def __init__(self, smooth):
        super().__init__()
        self.smooth = smooth

    def forward(self, logits, target):
        probs = torch.softmax(logits, dim=1)
        onehot = torch.zeros_like(probs).scatter_(1, target, 1.0)
        dims = (2, 3, 4)
        inter = (probs * onehot).sum(dim=dims)
        denom = probs.sum(dim=dims) + onehot.sum(dim=dims)
        dice = 1.0 - (2.0 * inter + self.smooth) / (denom + self.smooth)
        ce = F.cross_entropy(logits, target.squeeze(1), reduction="none").mean(dim=(1, 2, 3))
        return dice[:, 1:] + ce.unsqueeze(1)


def get_inputs():
    target = (torch.rand(BATCH, 1, DEPTH, HEIGHT, WIDTH) ** 2 * CLASSES).long().clamp(max=CLASSES - 1)
    logits = torch.randn(BATCH, CLASSES, DEPTH, HEIGHT, WIDTH)
    logits = logits + torch.randn(BATCH, CLASSES, 1, 1, 1)
    logits.scatter_add_(1, target, 2.0 * torch.rand(BATCH, 1, DEPTH, HEIGHT, WIDTH))
    return [logits, target]


def get_init_inputs():
    return [SMOOTH]
