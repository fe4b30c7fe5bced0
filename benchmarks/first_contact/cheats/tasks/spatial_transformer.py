import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, c=3):
        super().__init__()
        self.loc = nn.Linear(c * 16, 6)
        nn.init.zeros_(self.loc.weight)
        with torch.no_grad():
            self.loc.bias.copy_(torch.tensor([1., 0, 0, 0, 1, 0]))

    def forward(self, x):
        th = self.loc(F.adaptive_avg_pool2d(x, 4).flatten(1)).view(-1, 2, 3)
        return F.grid_sample(x, F.affine_grid(th, x.shape, align_corners=False), align_corners=False)


def get_inputs():
    return [torch.randn(8, 3, 64, 64)]


def get_init_inputs():
    return [3]
