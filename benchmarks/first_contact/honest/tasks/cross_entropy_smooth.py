import torch, torch.nn as nn, torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, classes, smooth):
        super().__init__()
        self.smooth = smooth
        self.register_buffer("class_weight", torch.linspace(0.5, 1.5, classes))

    def forward(self, logits, target):
        return F.cross_entropy(logits, target, weight=self.class_weight, ignore_index=-1, label_smoothing=self.smooth)


def get_inputs():
    target = torch.randint(0, 1000, (768,))
    target[::17] = -1
    return [torch.randn(768, 1000) * 3, target]


def get_init_inputs():
    return [1000, 0.1]
