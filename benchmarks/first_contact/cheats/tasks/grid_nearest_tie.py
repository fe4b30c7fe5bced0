import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Nearest-neighbour sampling of images at given places, zeros outside."""
    def forward(self, image, grid):
        return F.grid_sample(image, grid, mode="nearest", padding_mode="zeros", align_corners=True)

def get_inputs():
    return [torch.randn(16, 256, 17, 17), torch.randn(16, 20, 20, 2) * 0.6]
def get_init_inputs():
    return []
