import torch
import torch.nn as nn


class Model(nn.Module):
    """8-bit pixels through a curve for each channel (tone mapping)."""

    def __init__(self, channels: int):
        super().__init__()
        ramp = torch.arange(256).float() / 255
        self.curve = nn.Parameter(torch.stack([ramp ** (1 + 0.2 * c) for c in range(channels)]))

    def forward(self, image):
        channel = torch.arange(image.shape[1], device=image.device)[None, :, None, None]
        return self.curve[channel, image.long()]


def get_inputs():
    return [torch.randint(0, 256, (4, 3, 160, 200), dtype=torch.uint8)]


def get_init_inputs():
    return [3]
