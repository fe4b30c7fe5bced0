import torch
import torch.nn as nn


class Model(nn.Module):
    """Matrix NMS (SOLOv2): soft decay of the scores of boxes that are sorted by rank."""

    def __init__(self, sigma):
        super().__init__()
        self.sigma = sigma

    def forward(self, boxes, scores):
        x1, y1, x2, y2 = boxes.unbind(1)
        area = (x2 - x1) * (y2 - y1)
        w = (torch.minimum(x2[:, None], x2) - torch.maximum(x1[:, None], x1)).clamp(min=0)
        h = (torch.minimum(y2[:, None], y2) - torch.maximum(y1[:, None], y1)).clamp(min=0)
        inter = w * h
        union = (area[:, None] + area - inter).clamp(min=1e-3)
        iou = (inter / union).clamp(max=1.0).triu(1)
        comp = iou.amax(0)
        decay = torch.exp((comp[:, None] ** 2 - iou**2) / self.sigma).amin(0)
        return scores * decay


def get_inputs():
    n = 700
    corner = torch.rand(n, 2) * 100
    return [torch.cat([corner, corner + torch.rand(n, 2) * 40 + 1], 1), torch.rand(n)]


def get_init_inputs():
    return [0.5]
