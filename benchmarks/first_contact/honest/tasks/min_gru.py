import torch
import torch.nn as nn

BATCH, STEPS, WIDTH = 6, 70, 99

class Model(nn.Module):
    """A gated linear recurrence over time; all states and the last one."""
    def __init__(self, width):
        super().__init__()
        self.start = nn.Parameter(torch.randn(width))

    def forward(self, gate, value):
        state = self.start.expand(gate.shape[0], -1)
        states = []
        for step in range(gate.shape[1]):
            z = torch.sigmoid(gate[:, step])
            state = (1 - z) * state + z * torch.tanh(value[:, step])
            states.append(state)
        return torch.stack(states, dim=1), state

def get_inputs():
    return [torch.randn(BATCH, STEPS, WIDTH), torch.randn(BATCH, STEPS, WIDTH)]

def get_init_inputs():
    return [WIDTH]
