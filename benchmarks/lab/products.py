"""Matrix products as models have them, with a bias and a relu; `layers.py` times them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from layers import Layer, main

from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Buffer,
    GemmKernel,
    Load,
    Named,
    OutputView,
    Plan,
    Store,
    View,
)
from foundry.knowledge.opgraph import DType, contiguous_strides


@dataclass(frozen=True)
class Product:
    """relu(x w + bias) for x of (batch, m, k); w is an input (k, n), or a parameter (n, k) like that of nn.Linear."""

    m: int
    n: int
    k: int
    batch: int = 1
    is_linear: bool = False
    dtype: DType = "float32"

    def eager(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        right = weight.mT if self.is_linear else weight
        if self.batch == 1:
            return torch.addmm(bias, x[0], right[0]).relu_()[None]
        return torch.baddbmm(bias, x, right).relu_()

    def plan(self) -> Plan:
        right = (self.batch, self.n, self.k) if self.is_linear else (self.batch, self.k, self.n)
        shapes = {"x": (self.batch, self.m, self.k), "w": right, "bias": (self.n,), "y": (self.batch, self.m, self.n)}
        strides = {name: contiguous_strides(shape) for name, shape in shapes.items()}
        role: Literal["parameter", "input"] = "parameter" if self.is_linear else "input"
        buffers = {
            "x": Buffer("x", shapes["x"], strides["x"], self.dtype, "input", "0"),
            "y": Buffer("y", shapes["y"], strides["y"], self.dtype, "output"),
            **{
                name: Buffer(name, shapes[name], strides[name], self.dtype, role, name if self.is_linear else place)
                for name, place in (("w", "1"), ("bias", "2"))
            },
        }
        of_w = (strides["w"][0], 1, self.k) if self.is_linear else strides["w"]
        value = _cast(Load("bias", View(0, (0, 0, 1)), self.dtype), "float32")
        value = Apply("relu", (Apply("add", (Named("acc", "float32"), value), "float32"),), "float32")
        operands = (
            _cast(Load(name, View(0, view), self.dtype), "float32") for name, view in (("x", strides["x"]), ("w", of_w))
        )
        stores = (Store("y", View(0, strides["y"]), _cast(value, self.dtype)),)
        kernel = GemmKernel(
            *("product", (self.batch,), self.m, self.n, self.k, *operands, stores, "float32"),
            constant_b=self.is_linear,
            ops=("mm", "relu"),
        )
        return Plan(buffers, (kernel,), (OutputView("y", shapes["y"], strides["y"]),), "tensor")


def _cast(value: Load | Apply, dtype: DType) -> Load | Apply:
    return value if value.dtype == dtype else Apply("cast", (value,), dtype)


SHAPES: dict[str, Layer] = {
    "square, row-major w": Product(4096, 4096, 4096),
    "square, linear": Product(4096, 4096, 4096, is_linear=True),
    "linear, 1024 rows": Product(1024, 8192, 8192, is_linear=True),
    "linear, 128 rows": Product(128, 16384, 4096, is_linear=True),
    "batched": Product(512, 1024, 512, batch=128),
    "shallow": Product(16384, 16384, 64),
    "deep": Product(256, 256, 262144),
    "odd": Product(4001, 3999, 2047),
    "square, bfloat16": Product(4096, 4096, 4096, dtype="bfloat16"),
    "linear, bfloat16": Product(4096, 4096, 4096, is_linear=True, dtype="bfloat16"),
    "linear, float16": Product(1024, 8192, 8192, is_linear=True, dtype="float16"),
    "sixteen, qkv": Product(32768, 2304, 768, is_linear=True, dtype="bfloat16"),
    "sixteen, out": Product(32768, 768, 768, is_linear=True, dtype="bfloat16"),
    "sixteen, up": Product(17496, 4304, 1152, is_linear=True, dtype="float16"),
    "sixteen, down": Product(17496, 1152, 4304, is_linear=True, dtype="float16"),
    "sixteen, gate and up": Product(6144, 13824, 2560, is_linear=True, dtype="bfloat16"),
    "sixteen, gated down": Product(6144, 2560, 6912, is_linear=True, dtype="bfloat16"),
}


if __name__ == "__main__":
    main(SHAPES)
