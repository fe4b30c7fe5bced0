import torch
import torch.nn as nn

BATCH, WIDTH, HIDDEN = 96, 128, 300

class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

def get_inputs():
    return [torch.randn(BATCH, WIDTH)]

def get_init_inputs():
    return [WIDTH, HIDDEN]
