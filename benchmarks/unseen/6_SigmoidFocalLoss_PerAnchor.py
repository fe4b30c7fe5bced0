import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 8
ANCHORS = 49104
CLASSES = 80
ALPHA = 0.25
GAMMA = 2.0


class Model(nn.Module):
    """
    RetinaNet-style sigmoid focal loss, summed over classes and weighted per
    anchor (weight 0 marks ignored anchors). Returns a loss for each anchor.
    """

    def __init__(self, alpha, gamma):
        super().__init__()
        self.alpha = alpha
        self.gamma = gamma

    def forward(self, logits, targets, anchor_weight):
        p = torch.sigmoid(logits)
        ce = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        p_t = p * targets + (1 - p) * (1 - targets)
        alpha_t = self.alpha * targets + (1 - self.alpha) * (1 - targets)
        loss = alpha_t * ((1 - p_t) ** self.gamma) * ce
        return loss.sum(dim=-1) * anchor_weight


def get_inputs():
    logits = torch.randn(BATCH, ANCHORS, CLASSES) * 1.5 - 2.0
    targets = (torch.rand(BATCH, ANCHORS, CLASSES) < 0.02).float()
    anchor_weight = torch.rand(BATCH, ANCHORS)
    anchor_weight = torch.where(anchor_weight < 0.1, torch.zeros_like(anchor_weight), anchor_weight)
    return [logits, targets, anchor_weight]


def get_init_inputs():
    return [ALPHA, GAMMA]
