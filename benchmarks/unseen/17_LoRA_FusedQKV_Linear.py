import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4
SEQ = 1000
DIM = 4096
Q_DIM = 4096
KV_DIM = 1024
RANK = 16
LORA_ALPHA = 32


class Model(nn.Module):
    """
    Fused QKV projection in bfloat16 with LoRA adapters on the query and value
    parts only.
    """

    def __init__(self, dim, q_dim, kv_dim, rank, alpha):
        super().__init__()
        dt = torch.bfloat16
        self.q_dim, self.kv_dim = q_dim, kv_dim
        self.scaling = alpha / rank
        self.weight = nn.Parameter((torch.randn(q_dim + 2 * kv_dim, dim) * dim**-0.5).to(dt))
        self.bias = nn.Parameter((0.1 * torch.randn(q_dim + 2 * kv_dim)).to(dt))
        self.lora_q_a = nn.Parameter((torch.randn(rank, dim) * dim**-0.5).to(dt))
        self.lora_q_b = nn.Parameter((0.1 * torch.randn(q_dim, rank)).to(dt))
        self.lora_v_a = nn.Parameter((torch.randn(rank, dim) * dim**-0.5).to(dt))
        self.lora_v_b = nn.Parameter((0.1 * torch.randn(kv_dim, rank)).to(dt))

    def forward(self, x):
        qkv = F.linear(x, self.weight, self.bias)
        q, k, v = qkv.split([self.q_dim, self.kv_dim, self.kv_dim], dim=-1)
        q = q + self.scaling * F.linear(F.linear(x, self.lora_q_a), self.lora_q_b)
        v = v + self.scaling * F.linear(F.linear(x, self.lora_v_a), self.lora_v_b)
        return torch.cat([q, k, v], dim=-1)


def get_inputs():
    return [torch.randn(BATCH, SEQ, DIM, dtype=torch.bfloat16)]


def get_init_inputs():
    return [DIM, Q_DIM, KV_DIM, RANK, LORA_ALPHA]
