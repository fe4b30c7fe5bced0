import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, ids, banned):
        return torch.isin(ids, banned)

def get_inputs():
    ids = torch.randint(-2 ** 62, 2 ** 62, (40000,))
    other = torch.randint(-2 ** 62, 2 ** 62, (1000,))
    return [ids, torch.cat([other, ids[torch.randint(0, 40000, (1000,))]])]

def get_init_inputs():
    return []
