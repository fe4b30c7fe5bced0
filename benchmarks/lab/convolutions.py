"""Convolutions as models have them, with a bias and a relu; `layers.py` times them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from layers import Layer, main

from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Buffer,
    ConvKernel,
    Load,
    Named,
    OutputView,
    Plan,
    Store,
    View,
)
from foundry.knowledge.opgraph import contiguous_strides


@dataclass(frozen=True)
class Convolution:
    """A convolution with a bias and a relu, as a model would have it."""

    batch: int
    channels: tuple[int, int]
    size: tuple[int, ...]
    window: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    output_padding: int = 0
    groups: int = 1
    transposed: bool = False

    @property
    def rank(self) -> int:
        return len(self.size)

    @property
    def out_size(self) -> tuple[int, ...]:
        if self.transposed:
            extra = self.output_padding - 2 * self.padding
            return tuple((n - 1) * self.stride + k + extra for n, k in zip(self.size, self.window, strict=True))
        return tuple((n + 2 * self.padding - k) // self.stride + 1 for n, k in zip(self.size, self.window, strict=True))

    def eager(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        more: dict[str, Any] = {"stride": self.stride, "padding": self.padding, "groups": self.groups}
        more |= {"output_padding": self.output_padding} if self.transposed else {}
        name = f"conv{'_transpose' if self.transposed else ''}{self.rank}d"
        result: torch.Tensor = getattr(torch.nn.functional, name)(x, weight, bias, **more)
        return result.relu_()

    def plan(self) -> Plan:
        inside, outside = self.channels
        first, second = (inside, outside) if self.transposed else (outside, inside)
        shapes = {
            "x": (self.batch, inside, *self.size),
            "w": (first, second // self.groups, *self.window),
            "bias": (outside,),
            "y": (self.batch, outside, *self.out_size),
        }
        strides = {name: contiguous_strides(shape) for name, shape in shapes.items()}
        buffers = {
            "x": Buffer("x", shapes["x"], strides["x"], "float32", "input", "0"),
            "y": Buffer("y", shapes["y"], strides["y"], "float32", "output"),
            **{name: Buffer(name, shapes[name], strides[name], "float32", "parameter", name) for name in ("w", "bias")},
        }
        bias = Load("bias", View(0, (0, 1, *(0,) * self.rank)), "float32")
        value = Apply("relu", (Apply("add", (Named("acc", "float32"), bias), "float32"),), "float32")
        each = (self.stride,) * self.rank, (self.padding,) * self.rank, (1,) * self.rank
        stores = (Store("y", View(0, strides["y"]), value),)
        kernel = ConvKernel(
            *("conv", self.batch, inside, outside, self.groups, self.size, self.out_size, self.window, *each),
            *(self.transposed, "x", 0, strides["x"], "w", stores, "float32", ("conv", "relu")),
        )
        return Plan(buffers, (kernel,), (OutputView("y", shapes["y"], strides["y"]),), "tensor")


SHAPES: dict[str, Layer] = {
    "plain 2d 3x3": Convolution(32, (64, 128), (112, 112), (3, 3), padding=1),
    "plain 2d 3x3 odd": Convolution(16, (64, 128), (129, 129), (3, 3)),
    "plain 3d 3x3x3": Convolution(16, (16, 64), (16, 64, 64), (3, 3, 3), padding=1),
    "plain 2d 8 channels": Convolution(64, (8, 64), (128, 128), (3, 3)),
    "plain 2d 3 channels": Convolution(32, (3, 64), (224, 224), (3, 3), padding=1),
    "plain 2d 3 channels 11x11": Convolution(64, (3, 96), (224, 224), (11, 11), stride=4, padding=2),
    "plain 3d 3 channels": Convolution(64, (3, 16), (16, 64, 64), (3, 3, 3)),
    "plain 3d 3 to 64 channels": Convolution(8, (3, 64), (64, 64, 64), (3, 3, 3)),
    "plain 3d 8 channels": Convolution(32, (8, 32), (32, 64, 64), (3, 3, 3)),
    "plain 3d 32 channels": Convolution(16, (32, 64), (32, 64, 64), (3, 3, 3)),
    "transposed 2d s1 3x3": Convolution(32, (64, 64), (128, 128), (3, 3), padding=1, transposed=True),
    "transposed 3d s2 5x5x5": Convolution(8, (32, 64), (32, 32, 32), (5, 5, 5), stride=2, padding=2, transposed=True),
    "transposed 1d s2": Convolution(
        16, (64, 64), (65536,), (5,), stride=2, padding=2, output_padding=1, transposed=True
    ),
    "transposed 2d s2 3x3": Convolution(
        16, (64, 128), (128, 128), (3, 3), stride=2, padding=1, output_padding=1, transposed=True
    ),
    "transposed 2d s2 4x4": Convolution(16, (128, 64), (64, 64), (4, 4), stride=2, padding=1, transposed=True),
    "transposed 3d s2 3x3x3": Convolution(
        16, (32, 64), (16, 32, 32), (3, 3, 3), stride=2, padding=1, output_padding=1, transposed=True
    ),
    "transposed 3d s2 3 channels": Convolution(
        64, (3, 16), (16, 32, 32), (3, 3, 3), stride=2, padding=1, transposed=True
    ),
    "transposed 3d s2 4x4x4": Convolution(16, (64, 32), (12, 24, 24), (4, 4, 4), stride=2, padding=1, transposed=True),
    "transposed 3d s1": Convolution(8, (48, 24), (32, 48, 48), (3, 3, 3), transposed=True),
    "depthwise 2d 3x3": Convolution(16, (64, 64), (512, 512), (3, 3), groups=64),
    "depthwise 2d 7x7": Convolution(32, (128, 128), (112, 112), (7, 7), padding=3, groups=128),
    "depthwise 2d 3x3 s2": Convolution(32, (128, 128), (224, 224), (3, 3), stride=2, padding=1, groups=128),
    "depthwise small images": Convolution(128, (960, 960), (14, 14), (3, 3), padding=1, groups=960),
    "depthwise transposed": Convolution(
        16, (64, 64), (128, 128), (4, 4), stride=2, padding=1, groups=64, transposed=True
    ),
    "groups of 4": Convolution(16, (128, 128), (128, 128), (3, 3), padding=1, groups=32),
    "groups of 8": Convolution(16, (128, 128), (128, 128), (3, 3), padding=1, groups=16),
    "groups of 16": Convolution(16, (128, 128), (128, 128), (3, 3), padding=1, groups=8),
    "to colours 9x9": Convolution(16, (64, 3), (256, 256), (9, 9), padding=4),
}


if __name__ == "__main__":
    main(SHAPES)
