import torch, torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()


    def forward(self, p, q):
        return F.kl_div(F.log_softmax(p, -1), F.softmax(q, -1), reduction='batchmean')

def get_inputs():
    return [torch.randn(512, 2000), torch.randn(512, 2000)]

def get_init_inputs():
    return []
