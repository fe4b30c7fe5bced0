import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """U-Net decoder step: transposed-conv up plus bilinear shortcut, gated skip, concat, two conv+BN(eval)+LeakyReLU."""

    def __init__(self, c_low, c_skip, c_out):
        super().__init__()
        self.up = nn.ConvTranspose2d(c_low, c_out, 3, stride=2, padding=1, output_padding=1)
        self.short = nn.Conv2d(c_low, c_out, 1, bias=False)
        self.gate_g = nn.Conv2d(c_out, c_skip // 2, 1)
        self.gate_x = nn.Conv2d(c_skip, c_skip // 2, 1)
        self.gate = nn.Conv2d(c_skip // 2, 1, 1)
        self.c1 = nn.Conv2d(c_out + c_skip, c_out, 3, padding=1, bias=False)
        self.c2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        for i in (1, 2):
            self.register_buffer(f"m{i}", torch.randn(c_out) * 0.1)
            self.register_buffer(f"v{i}", torch.rand(c_out) + 0.5)
            setattr(self, f"w{i}", nn.Parameter(torch.rand(c_out) + 0.5))
            setattr(self, f"b{i}", nn.Parameter(torch.randn(c_out) * 0.1))

    def forward(self, low, skip):
        x = self.up(low) + F.interpolate(self.short(low), scale_factor=2, mode="bilinear", align_corners=False)
        a = torch.sigmoid(self.gate(F.relu(self.gate_g(x) + self.gate_x(skip))))
        x = torch.cat((x, skip * a), dim=1)
        x = F.leaky_relu(F.batch_norm(self.c1(x), self.m1, self.v1, self.w1, self.b1, False), 0.1)
        x = F.leaky_relu(F.batch_norm(self.c2(x), self.m2, self.v2, self.w2, self.b2, False), 0.1)
        return x


def get_inputs():
    return [torch.randn(2, 64, 40, 40), torch.randn(2, 32, 80, 80)]


def get_init_inputs():
    return [64, 32, 32]
