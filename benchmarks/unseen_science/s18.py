import torch
import torch.nn as nn

B, T, A, WIN = 28, 1003, 9, 21


class Model(nn.Module):
    """Trading features: rolling z-score, rolling beta and correlation to the market mean, Donchian position and drawdown."""

    def __init__(self, win):
        super().__init__()
        self.win = win

    def roll(self, x):
        c = torch.cat([torch.zeros_like(x[:, :1]), x.cumsum(1)], dim=1)
        return (c[:, self.win:] - c[:, :-self.win]) / self.win

    def forward(self, ret):
        price = ret.mul(0.01).cumsum(1)
        mkt = ret.mean(2, keepdim=True)
        mr, mm = self.roll(ret), self.roll(mkt)
        var = (self.roll(ret * ret) - mr * mr).clamp(min=1e-4)
        vm = (self.roll(mkt * mkt) - mm * mm).clamp(min=1e-4)
        cov = self.roll(ret * mkt) - mr * mm
        z = (ret[:, self.win - 1:] - mr) / torch.sqrt(var)
        beta = cov / vm
        corr = cov / torch.sqrt(var * vm)
        win = price.unfold(1, self.win, 1)
        hi, lo = win.amax(-1), win.amin(-1)
        tail = price[:, self.win - 1:]
        donch = (tail - lo) / (hi - lo + 1e-6)
        draw = (price.cummax(1).values - price)[:, self.win - 1:]
        signal = torch.where(z > 1, (z - 1) * corr * donch, 0.5 * (z - 1) * beta * draw)
        return torch.stack([z, beta, corr, donch, draw, signal], dim=-1)


def get_inputs():
    return [torch.randn(B, T, A)]


def get_init_inputs():
    return [WIN]
