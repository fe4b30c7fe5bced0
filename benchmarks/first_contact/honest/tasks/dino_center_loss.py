import torch, torch.nn as nn, torch.nn.functional as F


class Model(nn.Module):
    """Self-distillation loss with a centre of the teacher's outputs, a buffer that training updates."""

    def __init__(self, dim, student_temp, teacher_temp):
        super().__init__()
        self.ts, self.tt = student_temp, teacher_temp
        self.register_buffer("center", torch.zeros(dim))

    def forward(self, student, teacher):
        p = F.softmax((teacher - self.center) / self.tt, dim=-1)
        loss = -(p * F.log_softmax(student / self.ts, dim=-1)).sum(-1).mean()
        if self.training:
            self.center.mul_(0.9).add_(teacher.mean(0), alpha=0.1)
        return loss


def get_inputs():
    return [torch.randn(384, 1024), torch.randn(384, 1024)]


def get_init_inputs():
    return [1024, 0.1, 0.07]
