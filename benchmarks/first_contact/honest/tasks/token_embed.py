import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Token and position embeddings, added and normalised."""

    def __init__(self, words, length, width):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        at = torch.arange(tokens.shape[1])
        return self.norm(self.words(tokens) + self.places(at))


def get_inputs():
    return [torch.randint(0, 3000, (16, 64))]


def get_init_inputs():
    return [3000, 64, 192]
