import torch
import torch.nn as nn


class Model(nn.Module):
    """One beam-search step: tied-vocab logits, repetition penalty, min-length EOS ban, length-normalised top-k, cache reorder."""

    def __init__(self, dim, vocab, beams, eos, penalty, length_alpha):
        super().__init__()
        self.beams, self.eos, self.penalty, self.alpha = beams, eos, penalty, length_alpha
        self.ln = nn.LayerNorm(dim)
        self.wte = nn.Parameter(torch.randn(vocab, dim) * 0.2)

    def forward(self, hidden, history, scores, cache):
        # hidden (B*K, D), history (B*K, T), scores (B, K), cache (B*K, H, T, d)
        B, K = scores.shape
        V = self.wte.shape[0]
        logits = self.ln(hidden) @ self.wte.t()
        seen = logits.gather(1, history)
        seen = torch.where(seen < 0, seen * self.penalty, seen / self.penalty)
        logits = logits.scatter(1, history, seen)
        logp = torch.log_softmax(logits, -1)
        ban = torch.arange(V, device=hidden.device) == self.eos
        logp = logp.masked_fill(ban, -1e9)
        total = (scores.reshape(-1, 1) + logp).view(B, K * V)
        best, flat = total.topk(self.beams, dim=-1)
        beam = torch.div(flat, V, rounding_mode="floor")
        token = flat % V
        rows = (beam + torch.arange(B, device=hidden.device)[:, None] * K).view(-1)
        new_hist = torch.cat((history.index_select(0, rows), token.view(-1, 1)), 1)
        norm = best / (((5.0 + new_hist.shape[1]) / 6.0) ** self.alpha)
        return norm, best, new_hist, cache.index_select(0, rows)


def get_inputs():
    B, K, T = 6, 4, 48
    return [torch.randn(B * K, 128), torch.randint(3, 16000, (B * K, T)), -torch.rand(B, K) * 5, torch.randn(B * K, 4, T, 32)]


def get_init_inputs():
    return [128, 16000, 4, 2, 1.3, 0.6]
