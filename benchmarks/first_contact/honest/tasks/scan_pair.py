import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, x, keep):
        y = torch.where(keep, x, torch.zeros_like(x))
        s = y.cumsum(1)
        n = keep.long().cumsum(1)
        return s / n.clamp(min=1), y.cummax(1).values, n
def get_inputs():
    return [torch.randn(64, 256, 8), torch.rand(64, 256, 8) > 0.2]
