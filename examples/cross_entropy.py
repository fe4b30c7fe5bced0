import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 3072
CLASSES = 8192
SCALE = 1


class Model(nn.Module):
    """The loss of a language model: mean cross-entropy of logits against class indices."""

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, targets)


def get_inputs():
    return [torch.randn(TOKENS * SCALE, CLASSES), torch.randint(0, CLASSES, (TOKENS * SCALE,))]


def get_init_inputs():
    return []
