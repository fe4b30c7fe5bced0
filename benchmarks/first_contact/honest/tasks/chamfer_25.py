import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, p, q):
        d = ((p[:, :, None, :] - q[:, None, :, :]) ** 2).sum(-1)
        a, b = d.min(2).values, d.min(1).values
        return a, b, a.mean(1) + b.mean(1)
def get_inputs():
    return [torch.randn(4, 160, 3), torch.randn(4, 128, 3)]
