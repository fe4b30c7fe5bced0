import torch
import torch.nn as nn

STEPS, BATCH, INPUT, HIDDEN = 64, 8, 64, 128


class Model(nn.Module):
    """Elman recurrence (tanh), all hidden states."""

    def __init__(self, inputs=INPUT, hidden=HIDDEN):
        super().__init__()
        self.rnn = nn.RNN(inputs, hidden)

    def forward(self, x):
        return self.rnn(x)[0]


def get_inputs():
    return [torch.randn(STEPS, BATCH, INPUT)]


def get_init_inputs():
    return [INPUT, HIDDEN]
