import torch
import torch.nn as nn

N, C = 45000, 16


class Model(nn.Module):
    """View-dependent colour of Gaussian splats: degree-3 real spherical harmonics of directions times bfloat16 coefficients."""

    def __init__(self):
        super().__init__()
        self.cam = nn.Parameter(torch.tensor([0.3, -1.2, 4.0]))

    def forward(self, pos, coef, opacity):
        d = pos.float() - self.cam
        d = d / d.norm(dim=-1, keepdim=True)
        x, y, z = d.unbind(-1)
        xx, yy, zz = x * x, y * y, z * z
        xy, yz, xz = x * y, y * z, x * z
        basis = torch.stack([
            torch.full_like(x, 0.28209479),
            -0.48860251 * y, 0.48860251 * z, -0.48860251 * x,
            1.09254843 * xy, -1.09254843 * yz, 0.31539157 * (2 * zz - xx - yy),
            -1.09254843 * xz, 0.54627421 * (xx - yy),
            -0.59004359 * y * (3 * xx - yy), 2.89061144 * xy * z,
            -0.45704579 * y * (4 * zz - xx - yy), 0.37317633 * z * (2 * zz - 3 * xx - 3 * yy),
            -0.45704579 * x * (4 * zz - xx - yy), 1.44530572 * z * (xx - yy),
            -0.59004359 * x * (xx - 3 * yy)], dim=-1)
        rgb = (basis[:, :, None] * coef.float()).sum(1) + 0.5
        rgb = rgb.clamp(min=0.0)
        alpha = torch.sigmoid(opacity.float())
        return torch.cat([rgb * alpha, alpha], dim=-1).to(coef.dtype)


def get_inputs():
    return [torch.randn(N, 3), torch.randn(N, C, 3).bfloat16(), torch.randn(N, 1).bfloat16()]


def get_init_inputs():
    return []
