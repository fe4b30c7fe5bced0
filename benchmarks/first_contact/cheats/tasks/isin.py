import torch
import torch.nn as nn

N = 100000
M = 2048


class Model(nn.Module):
    """Which of the 64-bit keys are in the set?"""

    def __init__(self):
        super().__init__()

    def forward(self, keys, members):
        return torch.isin(keys, members)


def get_inputs():
    members = torch.randint(-2**62, 2**62, (M,))
    keys = torch.randint(-2**62, 2**62, (N,))
    hit = torch.rand(N) < 0.3
    keys = torch.where(hit, members[torch.randint(0, M, (N,))], keys)
    return [keys, members]


def get_init_inputs():
    return []
