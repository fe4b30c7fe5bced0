import torch
import torch.nn as nn

BATCH = 1
SEQS = 192
RES = 288
C_M = 256
C_HIDDEN = 32
C_Z = 128


class Model(nn.Module):
    """
    AlphaFold outer product mean in bfloat16: the MSA representation is
    projected twice, outer products are averaged over the unmasked sequences
    and added to the pair representation.
    """

    def __init__(self, c_m, c_hidden, c_z):
        super().__init__()
        dt = torch.bfloat16
        self.norm = nn.LayerNorm(c_m, dtype=dt)
        self.proj_a = nn.Linear(c_m, c_hidden, dtype=dt)
        self.proj_b = nn.Linear(c_m, c_hidden, dtype=dt)
        self.out = nn.Linear(c_hidden * c_hidden, c_z, dtype=dt)
        nn.init.normal_(self.norm.weight, 1.0, 0.1)
        nn.init.normal_(self.norm.bias, 0.0, 0.1)
        nn.init.normal_(self.proj_a.weight, std=c_m**-0.5)
        nn.init.normal_(self.proj_b.weight, std=c_m**-0.5)
        nn.init.normal_(self.out.weight, std=1.0 / c_hidden)

    def forward(self, msa, msa_mask, pair):
        m = self.norm(msa)
        mask = msa_mask.unsqueeze(-1)
        a = self.proj_a(m) * mask
        b = self.proj_b(m) * mask
        outer = torch.einsum("bsic,bsjd->bijcd", a, b)
        count = torch.einsum("bsi,bsj->bij", msa_mask, msa_mask)
        outer = outer / (count[..., None, None] + 1e-3)
        return pair + self.out(outer.flatten(-2))


def get_inputs():
    dt = torch.bfloat16
    # Homologous sequences share most of the signal of a residue.
    msa = torch.randn(BATCH, 1, RES, C_M) + 0.7 * torch.randn(BATCH, SEQS, RES, C_M)
    msa_mask = (torch.rand(BATCH, SEQS, RES) > 0.15).to(dt)
    pair = torch.randn(BATCH, RES, RES, C_Z, dtype=dt)
    return [msa.to(dt), msa_mask, pair]


def get_init_inputs():
    return [C_M, C_HIDDEN, C_Z]
