import torch, torch.nn as nn, torch.nn.functional as F
class Model(nn.Module):
    def forward(self, x):
        p = F.pad(x, (1, 1, 1, 1), mode="reflect")
        w = p.unfold(2, 3, 1).unfold(3, 3, 1)
        return w.reshape(*x.shape, 9).median(dim=-1).values
def get_inputs():
    return [torch.randn(1, 3, 64, 64)]
