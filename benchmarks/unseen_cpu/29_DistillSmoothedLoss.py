import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Distillation objective on half logits: label-smoothed CE with ignored tokens, temperature KL to teacher, z-loss, soft dice."""

    def __init__(self, smoothing, temperature, z_weight, ignore):
        super().__init__()
        self.eps, self.tau, self.zw, self.ignore = smoothing, temperature, z_weight, ignore

    def forward(self, student, teacher, labels):
        valid = labels != self.ignore
        safe = labels.clamp(min=0)
        s = student.float()
        lse = torch.logsumexp(s, -1)
        nll = lse - s.gather(-1, safe.unsqueeze(-1)).squeeze(-1)
        uniform = lse - s.mean(-1)
        ce = (1 - self.eps) * nll + self.eps * uniform
        lt = torch.log_softmax(teacher.float() / self.tau, -1)
        ls = torch.log_softmax(s / self.tau, -1)
        kl = (lt.exp() * (lt - ls)).sum(-1) * self.tau ** 2
        tok = ce + kl + self.zw * lse.square()
        m = valid.float()
        loss = (tok * m).sum() / m.sum().clamp(min=1.0)
        p = torch.softmax(student, -1).gather(-1, safe.unsqueeze(-1)).squeeze(-1).float() * m
        dice = 1 - (2 * p.sum(-1) + 1) / (p.sum(-1) + m.sum(-1) + 1)
        return loss, dice.mean(), tok.to(student.dtype)


def get_inputs():
    B, T, V = 4, 64, 2048
    lab = torch.randint(0, V, (B, T))
    lab = torch.where(torch.rand(B, T) < 0.15, torch.full_like(lab, -100), lab)
    return [torch.randn(B, T, V, dtype=torch.float16), torch.randn(B, T, V, dtype=torch.float16), lab]


def get_init_inputs():
    return [0.1, 2.0, 0.0001, -100]
