import torch
import torch.nn as nn


class Model(nn.Module):
    """CTC negative log-likelihood by the alpha recursion in log space, blank 0, variable input and label lengths."""

    def __init__(self, hidden, vocab):
        super().__init__()
        self.head = nn.Linear(hidden, vocab)

    def forward(self, feats, labels, in_len, lab_len):
        # feats: (T, B, H); labels: (B, S) in 1..vocab-1
        T, B, _ = feats.shape
        S = labels.shape[1]
        logp = self.head(feats).log_softmax(-1)
        ext = torch.zeros(B, 2 * S + 1, dtype=torch.long, device=feats.device)
        ext[:, 1::2] = labels
        skip = torch.zeros_like(ext, dtype=torch.bool)
        skip[:, 3::2] = labels[:, 1:] != labels[:, :-1]
        emit = logp.gather(2, ext.unsqueeze(0).expand(T, -1, -1))
        neg = -1e30
        alpha = torch.full((B, 2 * S + 1), neg, device=feats.device)
        alpha[:, :2] = emit[0, :, :2]
        for t in range(1, T):
            s1 = torch.nn.functional.pad(alpha[:, :-1], (1, 0), value=neg)
            s2 = torch.nn.functional.pad(alpha[:, :-2], (2, 0), value=neg)
            s2 = torch.where(skip, s2, torch.full_like(s2, neg))
            new = torch.logsumexp(torch.stack((alpha, s1, s2)), dim=0) + emit[t]
            alpha = torch.where((t < in_len)[:, None], new, alpha)
        end = (2 * lab_len)[:, None]
        last = torch.cat((alpha.gather(1, end), alpha.gather(1, end - 1)), dim=1)
        nll = -torch.logsumexp(last, dim=1)
        return nll / lab_len.to(nll.dtype)


def get_inputs():
    T, B, S = 60, 16, 20
    return [torch.randn(T, B, 128), torch.randint(1, 64, (B, S)),
            torch.randint(50, T + 1, (B,)), torch.randint(8, S + 1, (B,))]


def get_init_inputs():
    return [128, 64]
