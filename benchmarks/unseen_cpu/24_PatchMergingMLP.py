import torch
import torch.nn as nn
import torch.nn.functional as F

DT = torch.float16


class Model(nn.Module):
    """Swin patch merging with odd-size padding, LN + reduction, followed by a layer-scaled MLP and a pooled head."""

    def __init__(self, dim, ratio, classes):
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim, dtype=DT)
        self.red = nn.Linear(4 * dim, 2 * dim, bias=False, dtype=DT)
        self.norm2 = nn.LayerNorm(2 * dim, dtype=DT)
        self.fc1 = nn.Linear(2 * dim, 2 * dim * ratio, dtype=DT)
        self.fc2 = nn.Linear(2 * dim * ratio, 2 * dim, dtype=DT)
        self.ls = nn.Parameter((torch.rand(2 * dim) * 0.2).to(DT))
        self.head = nn.Linear(2 * dim, classes, dtype=DT)

    def forward(self, x):
        B, H, W, C = x.shape
        x = F.pad(x, (0, 0, 0, W % 2, 0, H % 2))
        x = torch.cat((x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]), -1)
        x = self.red(self.norm(x))
        x = x + self.ls * self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return x, self.head(x.mean((1, 2)))


def get_inputs():
    return [torch.randn(2, 27, 27, 64, dtype=torch.float16)]


def get_init_inputs():
    return [64, 2, 50]
