import torch
import torch.nn as nn

R, T = 2050, 97


class Model(nn.Module):
    """Soft-edged Moller-Trumbore test of R rays against T triangles: nearest hit distance, barycentrics and Lambert shade."""

    def __init__(self, eps, sharp, far):
        super().__init__()
        self.eps, self.sharp, self.far = eps, sharp, far
        self.light = nn.Parameter(torch.randn(3))

    def forward(self, origin, direc, tri):
        d = direc / direc.norm(dim=-1, keepdim=True)
        v0 = tri[:, 0]
        e1, e2 = tri[:, 1] - v0, tri[:, 2] - v0
        dd = d[:, None, :].expand(-1, tri.shape[0], -1)
        h = torch.cross(dd, e2[None].expand_as(dd), dim=-1)
        det = (h * e1[None]).sum(-1)
        ok = det.abs() > self.eps
        inv = 1.0 / torch.where(ok, det, torch.ones_like(det))
        s = origin[:, None, :] - v0[None]
        u = (s * h).sum(-1) * inv
        q = torch.cross(s, e1[None].expand_as(s), dim=-1)
        v = (q * dd).sum(-1) * inv
        t = (q * e2[None]).sum(-1) * inv
        edge = torch.minimum(torch.minimum(u, v), torch.minimum(1 - u - v, t))
        cover = torch.where(ok, (edge * self.sharp).clamp(0, 1), torch.zeros_like(t))
        tt = torch.where(cover > 0, self.far + cover * (t.clamp(max=self.far) - self.far), torch.full_like(t, self.far))
        best, idx = tt.min(dim=1)
        uv = torch.stack([u.gather(1, idx[:, None])[:, 0], v.gather(1, idx[:, None])[:, 0]], -1)
        n = torch.cross(e1, e2, dim=-1)
        n = n / (n.norm(dim=-1, keepdim=True) + 1e-8)
        shade = (n[idx] @ self.light).abs()
        m = cover.gather(1, idx[:, None])[:, 0]
        return torch.cat([best[:, None], uv * m[:, None], (shade * m)[:, None]], -1)


def get_inputs():
    return [torch.randn(R, 3), torch.randn(R, 3), torch.randn(T, 3, 3) * 2]


def get_init_inputs():
    return [1e-6, 20.0, 10.0]
