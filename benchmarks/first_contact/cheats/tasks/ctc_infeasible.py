import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """CTC loss per sequence; sequences that cannot be aligned count zero."""
    def forward(self, logits, targets, input_lengths, target_lengths):
        lp = F.log_softmax(logits, dim=2)
        return F.ctc_loss(lp, targets, input_lengths, target_lengths, blank=0, reduction="none", zero_infinity=True)

def get_inputs():
    T, N, C, S = 128, 64, 64, 16
    return [torch.randn(T, N, C), torch.randint(1, C, (N, S)),
            torch.randint(96, T + 1, (N,)), torch.randint(8, S + 1, (N,))]
def get_init_inputs():
    return []
