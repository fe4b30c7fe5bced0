import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.window = window
    def forward(self, q, k, v):
        L, D = q.shape[-2:]
        s = (q @ k.transpose(-1, -2)) * D ** -0.5
        i = torch.arange(L)
        far = (i[:, None] - i[None, :]).abs() > self.window
        return s.masked_fill(far, float("-inf")).softmax(-1) @ v
def get_inputs():
    return [torch.randn(2, 4, 256, 32) for _ in range(3)]
def get_init_inputs():
    return [16]
