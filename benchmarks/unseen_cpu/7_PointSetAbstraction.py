import torch
import torch.nn as nn


class Model(nn.Module):
    """PointNet++ grouping: centre-to-point distances, k nearest inside a radius, gather relative coords and features, MLP, max."""

    def __init__(self, radius, k, c_in, c_mid, c_out):
        super().__init__()
        self.r2, self.k = radius * radius, k
        self.mlp = nn.Sequential(nn.Linear(c_in + 3, c_mid), nn.ReLU(), nn.Linear(c_mid, c_out))

    def forward(self, xyz, feats, centre_idx):
        B, N, _ = xyz.shape
        S = centre_idx.shape[1]
        ctr = xyz.gather(1, centre_idx[..., None].expand(-1, -1, 3))
        d2 = (ctr.pow(2).sum(-1)[:, :, None] + xyz.pow(2).sum(-1)[:, None, :]
              - 2 * torch.bmm(ctr, xyz.transpose(1, 2))).clamp(min=0)
        dist, idx = d2.topk(self.k, dim=-1, largest=False)
        idx = torch.where(dist > self.r2, idx[..., :1], idx)
        flat = idx.reshape(B, -1, 1)
        gx = xyz.gather(1, flat.expand(-1, -1, 3)).view(B, S, self.k, 3) - ctr[:, :, None]
        gf = feats.gather(1, flat.expand(-1, -1, feats.shape[-1])).view(B, S, self.k, -1)
        h = self.mlp(torch.cat((gx / self.r2 ** 0.5, gf), dim=-1))
        return ctr, h.amax(dim=2)


def get_inputs():
    return [torch.rand(4, 1024, 3), torch.randn(4, 1024, 16), torch.randint(0, 1024, (4, 128))]


def get_init_inputs():
    return [0.15, 16, 16, 32, 64]
