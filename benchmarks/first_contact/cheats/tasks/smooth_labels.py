import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """Label smoothing: the target distributions."""
    def __init__(self, classes, eps):
        super().__init__()
        self.classes, self.eps = classes, eps

    def forward(self, index):
        y = torch.full((index.shape[0], self.classes), self.eps / self.classes)
        return y.scatter_(1, index[:, None], 1 - self.eps + self.eps / self.classes)

def get_inputs():
    return [torch.randint(0, 1536, (4096,))]

def get_init_inputs():
    return [1536, 0.1]
