import math

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 6144
DIM = 768


class Model(nn.Module):
    """
    Symmetric image/text contrastive loss with a learned temperature; returns
    the loss of each pair.
    """

    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image_features, text_features):
        image_features = F.normalize(image_features, dim=-1)
        text_features = F.normalize(text_features, dim=-1)
        logits = self.logit_scale.exp() * image_features @ text_features.t()
        labels = torch.arange(logits.shape[0], device=logits.device)
        loss_i = F.cross_entropy(logits, labels, reduction="none")
        loss_t = F.cross_entropy(logits.t(), labels, reduction="none")
        return 0.5 * (loss_i + loss_t)


def get_inputs():
    image = torch.randn(BATCH, DIM)
    # Pairs match to different degrees.
    text = image * torch.rand(BATCH, 1) + 0.8 * torch.randn(BATCH, DIM)
    return [image, text]


def get_init_inputs():
    return []
