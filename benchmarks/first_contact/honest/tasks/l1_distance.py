import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.proto = nn.Parameter(torch.randn(n, d))
    def forward(self, x):
        return (x[:, None, :] - self.proto[None]).abs().sum(-1)
def get_inputs():
    return [torch.randn(256, 48)]
def get_init_inputs():
    return [96, 48]
