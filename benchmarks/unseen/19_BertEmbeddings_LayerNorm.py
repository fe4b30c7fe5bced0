import torch
import torch.nn as nn

BATCH = 256
SEQ = 512
VOCAB = 30522
TYPES = 2
DIM = 768
EPS = 1e-12


class Model(nn.Module):
    """
    BERT input embeddings in bfloat16: word + position + token-type lookups
    followed by LayerNorm.
    """

    def __init__(self, vocab, seq, types, dim, eps):
        super().__init__()
        dt = torch.bfloat16
        self.word = nn.Embedding(vocab, dim, padding_idx=0, dtype=dt)
        self.position = nn.Embedding(seq, dim, dtype=dt)
        self.token_type = nn.Embedding(types, dim, dtype=dt)
        self.norm = nn.LayerNorm(dim, eps=eps, dtype=dt)
        nn.init.normal_(self.norm.weight, 1.0, 0.1)
        nn.init.normal_(self.norm.bias, 0.0, 0.1)
        self.register_buffer("position_ids", torch.arange(seq).unsqueeze(0))

    def forward(self, input_ids, token_type_ids):
        seq = input_ids.size(1)
        e = self.word(input_ids) + self.token_type(token_type_ids)
        e = e + self.position(self.position_ids[:, :seq])
        return self.norm(e)


def get_inputs():
    input_ids = (torch.rand(BATCH, SEQ) * VOCAB).long().clamp(max=VOCAB - 1)
    token_type_ids = (torch.rand(BATCH, SEQ) * TYPES).long().clamp(max=TYPES - 1)
    return [input_ids, token_type_ids]


def get_init_inputs():
    return [VOCAB, SEQ, TYPES, DIM, EPS]
