import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, edges):
        super().__init__()
        self.register_buffer("edges", torch.linspace(-2, 2, edges))
    def forward(self, x):
        b = torch.bucketize(x, self.edges)
        h = torch.zeros(x.shape[0], self.edges.numel() + 1, dtype=torch.int64)
        return b, h.scatter_add_(1, b, torch.ones_like(b))
def get_inputs():
    return [torch.randn(32, 2048)]
def get_init_inputs():
    return [33]
