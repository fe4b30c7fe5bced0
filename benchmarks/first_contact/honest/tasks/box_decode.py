import math, torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, clip, height, width):
        super().__init__()
        self.clip, self.h, self.w = clip, height, width
    def forward(self, anchors, deltas, scores):
        size = anchors[:, 2:] - anchors[:, :2]
        ctr = anchors[:, :2] + 0.5 * size
        c = deltas[..., :2] * size + ctr
        s = torch.exp(deltas[..., 2:].clamp(max=self.clip)) * size
        lo, hi = c - 0.5 * s, c + 0.5 * s
        box = torch.stack([lo[..., 0].clamp(0, self.w), lo[..., 1].clamp(0, self.h),
                           hi[..., 0].clamp(0, self.w), hi[..., 1].clamp(0, self.h)], -1)
        best = scores.max(-1).values
        keep = (best > 0.5) & (box[..., 2] - box[..., 0] >= 4) & (box[..., 3] - box[..., 1] >= 4)
        return box, best, keep, keep.sum(-1)
def get_inputs():
    a = torch.rand(1500, 2) * 200
    return [torch.cat([a, a + 10 + torch.rand(1500, 2) * 60], 1), torch.randn(4, 1500, 4) * 0.5, torch.rand(4, 1500, 8)]
def get_init_inputs():
    return [math.log(1000 / 16), 256, 320]
