import torch
import torch.nn as nn
import torch.nn.functional as F

DT = torch.float16


class Model(nn.Module):
    """Video stem: temporal shift of channel slices, frame-wise conv, 3d max pool, motion gate from frame differences, EMA over time."""

    def __init__(self, c_in, c, fold, decay):
        super().__init__()
        self.fold, self.decay = fold, decay
        self.conv = nn.Conv2d(c_in, c, 3, stride=2, padding=1, dtype=DT)
        self.pw = nn.Conv2d(c, c, 1, dtype=DT)
        self.gate = nn.Linear(c, c, dtype=DT)

    def forward(self, x):
        B, T, C, H, W = x.shape
        h = F.relu(self.conv(x.reshape(B * T, C, H, W)))
        c, hh, ww = h.shape[1:]
        h = h.view(B, T, c, hh, ww)
        f = self.fold
        past = F.pad(h[:, :-1, :f], (0, 0, 0, 0, 0, 0, 1, 0))
        futr = F.pad(h[:, 1:, f:2 * f], (0, 0, 0, 0, 0, 0, 0, 1))
        h = torch.cat((past, futr, h[:, :, 2 * f:]), 2)
        h = self.pw(h.reshape(B * T, c, hh, ww)).view(B, T, c, hh, ww).transpose(1, 2)
        h = F.max_pool3d(h, (1, 2, 2)) + F.avg_pool3d(h.float(), (1, 2, 2)).to(h.dtype)
        diff = (h[:, :, 1:] - h[:, :, :-1]).abs().mean((2, 3, 4))
        h = h * torch.sigmoid(self.gate(diff))[:, :, None, None, None]
        s = h.float().mean((3, 4))
        ema = [s[..., 0]]
        for t in range(1, T):
            ema.append(self.decay * ema[-1] + (1 - self.decay) * s[..., t])
        return h, torch.stack(ema, 1).to(x.dtype)


def get_inputs():
    return [torch.randn(1, 8, 3, 64, 64, dtype=torch.float16)]


def get_init_inputs():
    return [3, 24, 4, 0.8]
