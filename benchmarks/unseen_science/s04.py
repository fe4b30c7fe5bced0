import torch
import torch.nn as nn

B, A, G = 8, 2300, 19


class Model(nn.Module):
    """Anchor assignment with pairwise GIoU between boxes and ground truths, then a focal-weighted GIoU loss per image and box."""

    def __init__(self, pos_thr, gamma):
        super().__init__()
        self.pos_thr, self.gamma = pos_thr, gamma

    @staticmethod
    def corners(b):
        wh = b[..., 2:].clamp(min=1e-3)
        return b[..., :2] - 0.5 * wh, b[..., :2] + 0.5 * wh

    def forward(self, pred, gt, score):
        plo, phi = self.corners(pred[:, :, None, :])
        glo, ghi = self.corners(gt[:, None, :, :])
        inter = (torch.minimum(phi, ghi) - torch.maximum(plo, glo)).clamp(min=0).prod(-1)
        ap, ag = (phi - plo).prod(-1), (ghi - glo).prod(-1)
        union = ap + ag - inter
        hull = (torch.maximum(phi, ghi) - torch.minimum(plo, glo)).prod(-1)
        iou = inter / union
        giou = iou - (hull - union) / hull
        best, idx = giou.max(dim=2)
        biou = iou.gather(2, idx[..., None]).squeeze(-1)
        p = torch.sigmoid(score)
        pos = biou > self.pos_thr
        cls = torch.where(pos, (biou - p).abs() ** self.gamma, p ** self.gamma)
        bce = -torch.where(pos, biou * torch.log(p), torch.zeros_like(p)) - (1 - biou) * torch.log1p(-p)
        loss = cls * bce + torch.where(pos, 1.0 - best, torch.zeros_like(best))
        recall = giou.amax(dim=1)
        per_gt = torch.zeros_like(recall).scatter_add(1, idx, loss)
        return torch.cat([loss.mean(1, keepdim=True), recall, per_gt], dim=1)


def get_inputs():
    return [torch.rand(B, A, 4), torch.rand(B, G, 4), torch.randn(B, A)]


def get_init_inputs():
    return [0.4, 2.0]
