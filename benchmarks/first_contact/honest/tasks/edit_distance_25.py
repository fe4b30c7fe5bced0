import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, a, b):
        B, n, m = a.shape[0], a.shape[1], b.shape[1]
        j = torch.arange(m + 1)
        row = j.expand(B, m + 1)
        for i in range(n):
            sub = row[:, :-1] + (a[:, i:i + 1] != b).long()
            best = torch.minimum(sub, row[:, 1:] + 1)
            best = torch.cat([torch.full((B, 1), i + 1), best], 1)
            row = (best - j).cummin(1).values + j
        return row[:, -1]
def get_inputs():
    return [torch.randint(0, 5, (32, 40)), torch.randint(0, 5, (32, 48))]
