import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        d = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
        return d.min(2).values.mean(1) + d.min(1).values.mean(1)

def get_inputs():
    return [torch.rand(2, 512, 2), torch.rand(2, 512, 2)]


def get_init_inputs():
    return []
