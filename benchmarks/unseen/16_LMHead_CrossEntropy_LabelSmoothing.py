import torch
import torch.nn as nn

TOKENS = 6144
DIM = 2048
VOCAB = 32000
SMOOTHING = 0.1
Z_LOSS = 1e-4


class Model(nn.Module):
    """
    Language-model head and per-token loss: bfloat16 logits, cross entropy by
    logsumexp in float32 with label smoothing and a small z-loss.
    """

    def __init__(self, dim, vocab, smoothing, z_loss):
        super().__init__()
        self.smoothing = smoothing
        self.z_loss = z_loss
        self.head = nn.Linear(dim, vocab, bias=False, dtype=torch.bfloat16)
        nn.init.normal_(self.head.weight, std=2.0 * dim**-0.5)

    def forward(self, hidden, target):
        logits = self.head(hidden).float()
        lse = torch.logsumexp(logits, dim=-1)
        picked = logits.gather(1, target.unsqueeze(1)).squeeze(1)
        nll = lse - picked
        uniform = lse - logits.mean(dim=-1)
        loss = (1.0 - self.smoothing) * nll + self.smoothing * uniform
        return loss + self.z_loss * lse * lse


def get_inputs():
    hidden = torch.randn(TOKENS, DIM, dtype=torch.bfloat16)
    target = (torch.rand(TOKENS) * VOCAB).long().clamp(max=VOCAB - 1)
    return [hidden, target]


def get_init_inputs():
    return [DIM, VOCAB, SMOOTHING, Z_LOSS]
