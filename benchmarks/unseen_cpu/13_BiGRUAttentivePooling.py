import torch
import torch.nn as nn


class GRUDir(nn.Module):
    def __init__(self, c_in, hidden):
        super().__init__()
        self.ih = nn.Linear(c_in, 3 * hidden)
        self.hh = nn.Linear(hidden, 3 * hidden)
        self.hidden = hidden

    def forward(self, x, mask, reverse):
        # x (B,T,C), mask (B,T) of 0/1
        B, T, _ = x.shape
        gi = self.ih(x)
        h = x.new_zeros(B, self.hidden)
        outs = [None] * T
        for t in (range(T - 1, -1, -1) if reverse else range(T)):
            ir, iz, inn = gi[:, t].chunk(3, -1)
            hr, hz, hn = self.hh(h).chunk(3, -1)
            r = torch.sigmoid(ir + hr)
            z = torch.sigmoid(iz + hz)
            n = torch.tanh(inn + r * hn)
            new = (1 - z) * n + z * h
            m = mask[:, t:t + 1]
            h = m * new + (1 - m) * h
            outs[t] = h
        return torch.stack(outs, 1)


class Model(nn.Module):
    """Masked bidirectional GRU unrolled by hand on embedded tokens, additive attention pooling, classifier."""

    def __init__(self, vocab, emb, hidden, classes):
        super().__init__()
        self.emb = nn.Embedding(vocab, emb, padding_idx=0)
        self.fw = GRUDir(emb, hidden)
        self.bw = GRUDir(emb, hidden)
        self.proj = nn.Linear(2 * hidden, hidden)
        self.ctx = nn.Parameter(torch.randn(hidden) * 0.1)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, tok):
        mask = (tok != 0).float()
        x = self.emb(tok)
        h = torch.cat((self.fw(x, mask, False), self.bw(x, mask, True)), -1)
        s = torch.tanh(self.proj(h)) @ self.ctx
        a = s.masked_fill(mask == 0, -1e9).softmax(1)
        return self.head((a.unsqueeze(-1) * h).sum(1))


def get_inputs():
    tok = torch.randint(1, 2000, (16, 40))
    lens = torch.randint(10, 41, (16, 1))
    return [tok * (torch.arange(40)[None] < lens).long()]


def get_init_inputs():
    return [2000, 64, 96, 10]
