import torch
import torch.nn as nn


class Model(nn.Module):
    """Deformable attention on one map: predicted offsets and weights, manual bilinear sampling by flat index gather, projection."""

    def __init__(self, dim, heads, points, h, w):
        super().__init__()
        self.heads, self.points, self.h, self.w = heads, points, h, w
        self.value = nn.Linear(dim, dim)
        self.offset = nn.Linear(dim, heads * points * 2)
        self.weight = nn.Linear(dim, heads * points)
        self.out = nn.Linear(dim, dim)

    def forward(self, query, ref, feat):
        # query (B,Q,C), ref (B,Q,2) in [0,1], feat (B,H*W,C)
        B, Q, C = query.shape
        Hh, P = self.heads, self.points
        v = self.value(feat).view(B, -1, Hh, C // Hh).transpose(1, 2)
        off = self.offset(query).view(B, Q, Hh, P, 2)
        w = self.weight(query).view(B, Q, Hh, P).softmax(-1).permute(0, 2, 1, 3)
        size = torch.tensor([self.w, self.h], device=query.device, dtype=query.dtype)
        loc = (ref[:, :, None, None] * size + off - 0.5).permute(0, 2, 1, 3, 4)
        base = loc.floor()
        frac = loc - base
        x0, y0 = base[..., 0].long(), base[..., 1].long()
        acc = None
        for dy in (0, 1):
            for dx in (0, 1):
                xi, yi = x0 + dx, y0 + dy
                ok = (xi >= 0) & (xi < self.w) & (yi >= 0) & (yi < self.h)
                flat = yi.clamp(0, self.h - 1) * self.w + xi.clamp(0, self.w - 1)
                g = v.gather(2, flat.reshape(B, Hh, Q * P, 1).expand(-1, -1, -1, C // Hh)).view(B, Hh, Q, P, -1)
                wx = frac[..., 0] if dx else 1 - frac[..., 0]
                wy = frac[..., 1] if dy else 1 - frac[..., 1]
                term = g * (w * wx * wy * ok.to(w.dtype)).unsqueeze(-1)
                acc = term if acc is None else acc + term
        y = acc.sum(3).transpose(1, 2).reshape(B, Q, C)
        return self.out(y)


def get_inputs():
    return [torch.randn(2, 200, 128), torch.rand(2, 200, 2), torch.randn(2, 32 * 32, 128)]


def get_init_inputs():
    return [128, 8, 4, 32, 32]
