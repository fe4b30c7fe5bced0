import torch
import torch.nn as nn
import torch.nn.functional as F

DT = torch.float16


class Model(nn.Module):
    """MobileNetV3 pair: expand, strided depthwise, squeeze-excite with hard-sigmoid, project; then a stride-1 residual twin."""

    def __init__(self, c_in, c_exp, c_out, squeeze):
        super().__init__()
        def block(ci, stride):
            return nn.ModuleDict({
                "expand": nn.Conv2d(ci, c_exp, 1, dtype=DT),
                "dw": nn.Conv2d(c_exp, c_exp, 5, stride=stride, padding=2, groups=c_exp, dtype=DT),
                "se1": nn.Conv2d(c_exp, squeeze, 1, dtype=DT),
                "se2": nn.Conv2d(squeeze, c_exp, 1, dtype=DT),
                "project": nn.Conv2d(c_exp, c_out, 1, dtype=DT),
            })
        self.a = block(c_in, 2)
        self.b = block(c_out, 1)

    def run(self, m, x):
        h = F.hardswish(m["expand"](x))
        h = F.hardswish(m["dw"](h))
        s = h.mean((2, 3), keepdim=True)
        h = h * F.hardsigmoid(m["se2"](F.relu(m["se1"](s))))
        return m["project"](h)

    def forward(self, x):
        x = self.run(self.a, x)
        return x + self.run(self.b, x)


def get_inputs():
    return [torch.randn(2, 24, 28, 28, dtype=torch.float16)]


def get_init_inputs():
    return [24, 72, 40, 24]
