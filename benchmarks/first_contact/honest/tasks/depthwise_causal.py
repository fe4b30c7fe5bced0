import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, CHANNELS, LENGTH, TAPS = 4, 67, 1025, 7

class Model(nn.Module):
    def __init__(self, channels, taps):
        super().__init__()
        self.taps = taps
        self.conv = nn.Conv1d(channels, channels, taps, groups=channels)

    def forward(self, x):
        return self.conv(F.pad(x, (self.taps - 1, 0)))

def get_inputs():
    return [torch.randn(BATCH, CHANNELS, LENGTH)]

def get_init_inputs():
    return [CHANNELS, TAPS]
