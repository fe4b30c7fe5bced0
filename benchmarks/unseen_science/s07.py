import torch
import torch.nn as nn

B, T, S, V = 200, 16, 23, 21


class Model(nn.Module):
    """Profile HMM over amino acids: log-space forward likelihood and Viterbi score run together, with state posteriors at the end."""

    def __init__(self, states, symbols):
        super().__init__()
        self.trans = nn.Parameter(torch.randn(states, states))
        self.emit = nn.Parameter(torch.randn(states, symbols))
        self.start = nn.Parameter(torch.randn(states))

    def forward(self, seq, length):
        logA = torch.log_softmax(self.trans, dim=1)
        logE = torch.log_softmax(self.emit, dim=1).T
        obs = logE[seq]
        alpha = torch.log_softmax(self.start, dim=0) + obs[:, 0]
        delta = alpha
        back = []
        for t in range(1, seq.shape[1]):
            live = (length > t)[:, None]
            na = torch.logsumexp(alpha[:, :, None] + logA, dim=1) + obs[:, t]
            nd, arg = (delta[:, :, None] + logA).max(dim=1)
            alpha = torch.where(live, na, alpha)
            delta = torch.where(live, nd + obs[:, t], delta)
            back.append(arg)
        like = torch.logsumexp(alpha, dim=1, keepdim=True)
        vit, last = delta.max(dim=1, keepdim=True)
        stays = torch.zeros_like(like)
        for t in range(len(back) - 1, -1, -1):
            prev = back[t].gather(1, last)
            live = (length > t + 1)[:, None]
            prev = torch.where(live, prev, last)
            stays = stays + (prev == last).to(like.dtype)
            last = prev
        return torch.cat([like, vit, stays, torch.exp(alpha - like)], dim=1)


def get_inputs():
    return [torch.randint(0, V, (B, T)), torch.randint(4, T + 1, (B,))]


def get_init_inputs():
    return [S, V]
