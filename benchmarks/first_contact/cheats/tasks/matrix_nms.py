import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, xy, wh, score):
        s, idx = score.sort(descending=True)
        a, b = xy[idx], xy[idx] + wh[idx]
        lt = torch.maximum(a[:, None], a[None])
        rb = torch.minimum(b[:, None], b[None])
        inter = (rb - lt).clamp(min=0).prod(-1)
        area = (b - a).prod(-1)
        iou = (inter / (area[:, None] + area[None] - inter)).triu(1)
        comp = iou.max(0).values[:, None]
        decay = torch.exp(-(iou ** 2 - comp ** 2) / 0.5).min(0).values
        return s * decay


def get_inputs():
    return [torch.rand(256, 2) * 480, torch.rand(256, 2) * 28 + 4, torch.rand(256)]
