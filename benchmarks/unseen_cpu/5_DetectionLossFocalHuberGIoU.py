import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Dense detector loss: sigmoid focal classification, Huber on offsets and GIoU on decoded boxes, normalised by positives."""

    def __init__(self, num_classes, alpha, gamma, delta):
        super().__init__()
        self.num_classes, self.alpha, self.gamma, self.delta = num_classes, alpha, gamma, delta

    def forward(self, logits, deltas, anchors, labels, gt):
        # labels: (B, A), 0 means background; boxes as cx, cy, w, h
        pos = labels > 0
        n = pos.sum().clamp(min=1).to(logits.dtype)
        target = F.one_hot(labels, self.num_classes + 1)[..., 1:].to(logits.dtype)
        ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        p = torch.sigmoid(logits)
        pt = p * target + (1 - p) * (1 - target)
        at = self.alpha * target + (1 - self.alpha) * (1 - target)
        cls = (at * (1 - pt).pow(self.gamma) * ce).sum() / n
        reg_t = torch.cat(((gt[..., :2] - anchors[..., :2]) / anchors[..., 2:],
                           torch.log(gt[..., 2:] / anchors[..., 2:])), -1)
        hub = F.huber_loss(deltas, reg_t, delta=self.delta, reduction="none").sum(-1)
        ctr = anchors[..., :2] + deltas[..., :2] * anchors[..., 2:]
        wh = anchors[..., 2:] * torch.exp(deltas[..., 2:].clamp(max=4.0))
        a1, a2 = ctr - wh / 2, ctr + wh / 2
        b1, b2 = gt[..., :2] - gt[..., 2:] / 2, gt[..., :2] + gt[..., 2:] / 2
        inter = (torch.minimum(a2, b2) - torch.maximum(a1, b1)).clamp(min=0).prod(-1)
        union = wh.prod(-1) + gt[..., 2:].prod(-1) - inter
        hull = (torch.maximum(a2, b2) - torch.minimum(a1, b1)).prod(-1)
        giou = inter / (union + 1e-7) - (hull - union) / (hull + 1e-7)
        posf = pos.to(logits.dtype)
        return torch.stack((cls, (hub * posf).sum() / n, ((1 - giou) * posf).sum() / n))


def get_inputs():
    B, A, C = 4, 5000, 20
    box = lambda: torch.cat((torch.rand(B, A, 2) * 10, torch.rand(B, A, 2) * 2 + 0.5), -1)
    labels = torch.randint(0, C + 1, (B, A)) * (torch.rand(B, A) < 0.2).long()
    return [torch.randn(B, A, C), torch.randn(B, A, 4) * 0.3, box(), labels, box()]


def get_init_inputs():
    return [20, 0.25, 2.0, 0.11]
