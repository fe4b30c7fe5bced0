import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.register_buffer("slopes", 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads))
    def forward(self, q, k, v):
        L, D = q.shape[-2:]
        i = torch.arange(L, device=q.device)
        dist = (i[None, :] - i[:, None]).float()
        s = (q @ k.transpose(-1, -2)) * D ** -0.5 + self.slopes[:, None, None] * dist
        s = s.masked_fill(i[None, :] > i[:, None], float("-inf"))
        return s.softmax(-1) @ v
def get_inputs():
    return [torch.randn(2, 8, 128, 32) for _ in range(3)]
def get_init_inputs():
    return [8]
