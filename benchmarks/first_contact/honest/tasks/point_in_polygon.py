import torch
import torch.nn as nn


class Model(nn.Module):
    """Even-odd test of points against polygons, and how many edges each rightward ray crosses."""

    def forward(self, points, poly):
        x, y = points[..., 0:1], points[..., 1:2]
        x0, y0 = poly[:, None, :, 0], poly[:, None, :, 1]
        x1, y1 = x0.roll(-1, 2), y0.roll(-1, 2)
        side = (x1 - x0) * (y - y0) - (x - x0) * (y1 - y0)
        up = (y0 <= y) & (y1 > y) & (side > 0)
        down = (y1 <= y) & (y0 > y) & (side < 0)
        n = (up | down).sum(2)
        return n % 2 == 1, n


def get_inputs():
    return [torch.randn(4, 1000, 2), torch.randn(4, 60, 2)]


def get_init_inputs():
    return []
