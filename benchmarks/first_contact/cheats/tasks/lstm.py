import torch
import torch.nn as nn

T = 384
I = 32
H = 48


class Model(nn.Module):
    """One long sequence through an LSTM cell; all hidden states."""

    def __init__(self, inputs, hidden):
        super().__init__()
        self.cell = nn.LSTMCell(inputs, hidden)
        self.hidden = hidden

    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.hidden)
        c = x.new_zeros(x.shape[0], self.hidden)
        out = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            out.append(h)
        return torch.stack(out, 1)


def get_inputs():
    return [torch.randn(1, T, I)]


def get_init_inputs():
    return [I, H]
