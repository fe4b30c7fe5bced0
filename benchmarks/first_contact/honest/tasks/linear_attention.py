import torch, torch.nn as nn, torch.nn.functional as F
class Model(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
    def forward(self, q, k, v):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("bhld,bhle->bhde", k, v)
        z = 1.0 / (torch.einsum("bhld,bhd->bhl", q, k.sum(2)) + self.eps)
        return torch.einsum("bhld,bhde,bhl->bhle", q, kv, z), kv
def get_inputs():
    return [torch.randn(2, 8, 192, 32) for _ in range(3)]
def get_init_inputs():
    return [1e-6]
