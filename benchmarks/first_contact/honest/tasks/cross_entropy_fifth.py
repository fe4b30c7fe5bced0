import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS, CLASSES = 600, 1003

class Model(nn.Module):
    """The loss of each row and the class that each row prefers."""
    def forward(self, logits, target):
        return F.cross_entropy(logits, target, reduction="none"), logits.argmax(dim=1)

def get_inputs():
    return [torch.randn(ROWS, CLASSES), torch.randint(0, CLASSES, (ROWS,))]

def get_init_inputs():
    return []
