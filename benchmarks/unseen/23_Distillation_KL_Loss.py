import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 2048
VOCAB = 50257
TEMPERATURE = 2.0
HARD_WEIGHT = 0.3


class Model(nn.Module):
    """
    Knowledge distillation loss on float16 logits for each token: temperature
    KL divergence to the teacher mixed with hard-label cross entropy.
    """

    def __init__(self, temperature, hard_weight):
        super().__init__()
        self.temperature = temperature
        self.hard_weight = hard_weight

    def forward(self, student, teacher, labels):
        s = student.float()
        t = teacher.float()
        log_p = F.log_softmax(s / self.temperature, dim=-1)
        q = F.softmax(t / self.temperature, dim=-1)
        kl = F.kl_div(log_p, q, reduction="none").sum(dim=-1) * self.temperature**2
        ce = F.cross_entropy(s, labels, reduction="none")
        return self.hard_weight * ce + (1.0 - self.hard_weight) * kl


def get_inputs():
    student = torch.randn(TOKENS, VOCAB) * (0.5 + 2.0 * torch.rand(TOKENS, 1))
    teacher = torch.randn(TOKENS, VOCAB) * (0.5 + 3.0 * torch.rand(TOKENS, 1)) + 0.5 * student
    labels = (torch.rand(TOKENS) * VOCAB).long().clamp(max=VOCAB - 1)
    return [student.half(), teacher.half(), labels]


def get_init_inputs():
    return [TEMPERATURE, HARD_WEIGHT]
