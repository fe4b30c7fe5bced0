"""Rows to select from, with ties, NaN, infinities and both zeros, and what PyTorch finds in them."""

from __future__ import annotations

import torch

from foundry.knowledge.compiler.ir.kernels import Apply, Expr, Load, Named, SelectKernel, Store, Ties, View
from foundry.knowledge.opgraph import DType

KINDS = ("normal", "ties", "special", "rising", "falling", "near")


def drawn(kind: str, rows: int, length: int, dtype: DType = "float32") -> torch.Tensor:
    """ "ties": few distinct numbers; "near": all digits but the last are the same."""
    torch.manual_seed(length)
    kinds = {
        "normal": torch.randn(rows, length) * 1000,
        "ties": torch.randint(-3, 4, (rows, length)).float(),
        "rising": torch.arange(rows * length).reshape(rows, length).float(),
        "falling": -torch.arange(rows * length).reshape(rows, length).float(),
        "near": 1 + torch.randint(0, 100, (rows, length)).float() * 2.0**-23,
        "special": torch.randn(rows, length),
    }
    found = kinds[kind]
    if kind == "special":
        numbers = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-45, -1e-45]
        for step, number in enumerate(numbers):
            found[:, step::11] = number
    if dtype.startswith(("int", "uint")):
        return found.nan_to_num(7, 9, -9).to(getattr(torch, dtype))
    return found.to(getattr(torch, dtype))


def select_kernel(x: torch.Tensor, first: int, count: int, *, largest: bool, ties: Ties = "first") -> SelectKernel:
    """Elements `first` to `count` of the rows of `x`, stored in "y" and "at"."""
    rows, length = x.shape
    dtype: DType = str(x.dtype).removeprefix("torch.")  # type: ignore[assignment]
    wide: DType = "float32" if dtype in ("float16", "bfloat16") else dtype
    value: Expr = Load("x", View(0, x.stride()), dtype)
    acc: Expr = Named("acc", wide)
    if wide != dtype:
        value, acc = Apply("cast", (value,), wide), Apply("cast", (acc,), dtype)
    view = View(0, (count - first, 1))
    stores = (Store("y", view, acc), Store("at", view, Named("index", "int64")))
    return SelectKernel("select", (rows,), length, first, count, largest, value, stores, wide, (), ties)


def in_order(x: torch.Tensor, first: int, count: int, *, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The values and their places; of equal ones the first comes first."""
    values, order = x.sort(dim=-1, descending=largest, stable=True)
    return values[:, first:count].contiguous(), order[:, first:count].contiguous()
