import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, wav):
        rms = torch.sqrt((wav * wav).mean(-1, keepdim=True) + 1e-8)
        return torch.tanh(wav / rms * 0.1)

def get_inputs():
    return [torch.randn(4, 160000) * 0.3]


def get_init_inputs():
    return []
