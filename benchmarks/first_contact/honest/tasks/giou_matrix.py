import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, a, b):
        area_a = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])
        area_b = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
        wh = (torch.min(a[:, None, 2:], b[None, :, 2:]) - torch.max(a[:, None, :2], b[None, :, :2])).clamp(min=0)
        inter = wh[..., 0] * wh[..., 1]
        union = area_a[:, None] + area_b[None] - inter
        iou = inter / union
        wh = (torch.max(a[:, None, 2:], b[None, :, 2:]) - torch.min(a[:, None, :2], b[None, :, :2])).clamp(min=0)
        hull = wh[..., 0] * wh[..., 1]
        return iou, iou - (hull - union) / hull
def get_inputs():
    c, s = torch.rand(200, 2) * 100, torch.rand(200, 2) * 30 + 1
    d, t = torch.rand(150, 2) * 100, torch.rand(150, 2) * 30 + 1
    return [torch.cat([c - s, c + s], 1), torch.cat([d - t, d + t], 1)]
