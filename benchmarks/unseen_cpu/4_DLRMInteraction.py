import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Recommender: bottom MLP, weighted embedding bags, pairwise dot interaction (strict upper triangle), top MLP, sigmoid."""

    def __init__(self, n_dense, n_tables, rows, dim, hidden):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(n_dense, hidden), nn.ReLU(), nn.Linear(hidden, dim), nn.ReLU())
        self.tables = nn.ParameterList([nn.Parameter(torch.randn(rows, dim) * 0.4) for _ in range(n_tables)])
        f = n_tables + 1
        self.register_buffer("iu", torch.triu_indices(f, f, offset=1))
        self.top = nn.Sequential(nn.Linear(dim + f * (f - 1) // 2, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, dense, idx, weight):
        # idx, weight: (tables, batch, bag)
        d = self.bottom(dense)
        feats = [d]
        for t, table in enumerate(self.tables):
            feats.append(F.embedding_bag(idx[t], table, mode="sum", per_sample_weights=weight[t]))
        z = torch.stack(feats, dim=1)
        inter = torch.bmm(z, z.transpose(1, 2))[:, self.iu[0], self.iu[1]]
        return torch.sigmoid(self.top(torch.cat((d, inter), dim=1))).squeeze(1)


def get_inputs():
    return [torch.randn(2048, 13), torch.randint(0, 5000, (12, 2048, 6)), torch.rand(12, 2048, 6)]


def get_init_inputs():
    return [13, 12, 5000, 32, 256]
