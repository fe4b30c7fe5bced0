import torch, torch.nn as nn
class Model(nn.Module):
    def __init__(self, vocab, dim, pad):
        super().__init__()
        self.pad = pad
        self.emb = nn.Embedding(vocab, dim)
    def forward(self, ids):
        keep = (ids != self.pad).unsqueeze(-1)
        s = (self.emb(ids) * keep).sum(1)
        return s / keep.sum(1).clamp(min=1)
def get_inputs():
    return [torch.randint(0, 1000, (128, 40)) * (torch.rand(128, 40) > 0.25)]
def get_init_inputs():
    return [1000, 96, 0]
