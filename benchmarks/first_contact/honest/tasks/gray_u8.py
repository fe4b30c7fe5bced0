import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Luma of planar RGB images, in integers."""

    def __init__(self):
        super().__init__()

    def forward(self, img):
        c = img.to(torch.int32)
        y = (77 * c[:, 0] + 150 * c[:, 1] + 29 * c[:, 2] + 128) >> 8
        return y.to(torch.uint8)


def get_inputs():
    return [torch.randint(0, 256, (6, 3, 384, 512), dtype=torch.uint8)]


def get_init_inputs():
    return []
