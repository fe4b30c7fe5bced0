import torch
import torch.nn as nn
import torch.nn.functional as F

B, H, W = 4, 187, 251


class Model(nn.Module):
    """Unsupervised optical flow loss map: backward warp, forward-backward soft occlusion check, Charbonnier photometric and edge-aware smoothness."""

    def __init__(self, alpha, beta):
        super().__init__()
        self.alpha, self.beta = alpha, beta

    @staticmethod
    def warp(img, flow):
        b, _, h, w = flow.shape
        ys = torch.arange(h, device=flow.device, dtype=flow.dtype)[:, None]
        xs = torch.arange(w, device=flow.device, dtype=flow.dtype)[None]
        gx = 2.0 * (xs + flow[:, 0]) / (w - 1) - 1.0
        gy = 2.0 * (ys + flow[:, 1]) / (h - 1) - 1.0
        out = F.grid_sample(img, torch.stack([gx, gy], -1), mode='bilinear', padding_mode='border', align_corners=True)
        inside = (gx.abs() <= 1) & (gy.abs() <= 1)
        return out, inside[:, None].to(flow.dtype)

    def forward(self, im1, im2, fw, bw):
        wim, inside = self.warp(im2, fw)
        wbw, _ = self.warp(bw, fw)
        mis = (fw + wbw).square().sum(1, keepdim=True)
        mag = fw.square().sum(1, keepdim=True) + wbw.square().sum(1, keepdim=True)
        vis = torch.sigmoid(self.alpha * mag + self.beta - mis) * inside
        photo = torch.sqrt((im1 - wim).square() + 1e-6).mean(1, keepdim=True) * vis
        gx = (im1[..., 1:] - im1[..., :-1]).abs().mean(1, keepdim=True)
        gy = (im1[..., 1:, :] - im1[..., :-1, :]).abs().mean(1, keepdim=True)
        sx = ((fw[..., 1:] - fw[..., :-1]).abs() * torch.exp(-10 * gx)).sum(1, keepdim=True)
        sy = ((fw[..., 1:, :] - fw[..., :-1, :]).abs() * torch.exp(-10 * gy)).sum(1, keepdim=True)
        return photo + 0.1 * (F.pad(sx, (0, 1)) + F.pad(sy, (0, 0, 0, 1))) + 0.05 * (1 - vis)


def get_inputs():
    return [torch.rand(B, 3, H, W), torch.rand(B, 3, H, W), torch.randn(B, 2, H, W) * 2, torch.randn(B, 2, H, W) * 2]


def get_init_inputs():
    return [0.2, 1.5]
