import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Best path scores of a hidden Markov model (Viterbi, maximum-sum forward pass)."""
    def __init__(self, states):
        super().__init__()
        self.trans = nn.Parameter(torch.randn(states, states))
    def forward(self, emission):
        s = emission[:, 0]
        out = [s]
        for t in range(1, emission.shape[1]):
            s = (s.unsqueeze(2) + self.trans).amax(dim=1) + emission[:, t]
            out.append(s)
        return torch.stack(out, 1)

def get_inputs():
    return [torch.randn(4, 64, 64) * 8]
def get_init_inputs():
    return [64]
