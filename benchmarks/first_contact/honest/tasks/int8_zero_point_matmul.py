import torch
import torch.nn as nn


class Model(nn.Module):
    """Quantised linear layer, integers only: int8 activations and weights, zero point, int32 bias and result."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8))
        self.register_buffer("zero_point", torch.tensor(7, dtype=torch.int32))
        self.register_buffer("bias", torch.randint(-1000, 1000, (outputs,), dtype=torch.int32))

    def forward(self, x):
        return (x.int() - self.zero_point) @ self.weight.int().t() + self.bias


def get_inputs():
    return [torch.randint(-128, 128, (256, 320), dtype=torch.int8)]


def get_init_inputs():
    return [320, 192]
