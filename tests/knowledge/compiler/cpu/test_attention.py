"""Attention printed, compiled and compared with float64 truth: causal, masked, odd sizes, several key blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch

from foundry.knowledge.compiler.cpu.contractions.attention import print_attention
from foundry.knowledge.compiler.ir.kernels import Apply, AttentionKernel, Load, Named, Store, View


@dataclass(frozen=True)
class Case:
    batch: tuple[int, ...]
    rows: int
    columns: int
    head: int
    value_head: int
    causal: bool = False
    mask: Literal["", "additive", "infinite"] = ""
    interleaved: bool = False  # heads inside a (batch, row, head, channel) tensor
    keys_by_column: bool = False  # keys stored as (head, columns)
    empty_rows: Literal["zero", "nan"] = "zero"
    choices: tuple[tuple[str, Any], ...] = ()


CASES = [
    Case((2, 3), 33, 50, 20, 20),
    Case((2, 2), 130, 300, 64, 64, interleaved=True, choices=(("key_block", 128), ("query_block", 32))),
    Case((3,), 70, 150, 40, 24, causal=True, choices=(("key_block", 64), ("query_blocks_per_task", 1))),
    Case((2,), 40, 90, 16, 33, causal=True),
    Case((2,), 90, 40, 16, 33, causal=True, keys_by_column=True),
    Case((2,), 45, 61, 32, 32, mask="additive"),
    Case((2,), 45, 200, 32, 32, mask="infinite", choices=(("key_block", 64),)),
    Case((2,), 45, 61, 32, 32, mask="infinite", empty_rows="nan"),
    Case((4, 8), 1, 77, 64, 64),
]


def _load(name: str, tensor: torch.Tensor) -> Load:
    return Load(name, View(0, tuple(tensor.stride())), "float32")


def _random(case: Case, rows: int, width: int) -> torch.Tensor:
    if case.interleaved:
        return torch.randn(case.batch[0], rows, case.batch[1], width).transpose(1, 2)
    return torch.randn(*case.batch, rows, width)


def _attention(tensors: list[torch.Tensor], case: Case) -> torch.Tensor:
    q, k, v, mask = tensors
    scores = q @ k.mT * (1 / math.sqrt(case.head))
    if case.mask:
        scores = scores + mask
    if case.causal:
        scores = scores.masked_fill(torch.ones(case.rows, case.columns).tril() == 0, -math.inf)
    weights = torch.softmax(scores, -1)
    if case.empty_rows == "zero":
        weights = weights.nan_to_num(0.0)
    return weights @ v


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(cpu_kernel: Any, case: Case) -> None:
    torch.manual_seed(0)
    q = _random(case, case.rows, case.head)
    k = _random(case, case.columns, case.head)
    v = _random(case, case.columns, case.value_head)
    if case.keys_by_column:
        k = k.mT.contiguous().mT
    mask = torch.randn(case.rows, case.columns)
    if case.mask == "infinite":
        mask[:, ::3] = -math.inf
        mask[:3, :100] = -math.inf  # whole rows, or whole blocks of keys
    result = torch.empty(*case.batch, case.rows, case.value_head)
    zeros = (0,) * len(case.batch)
    kernel = AttentionKernel(
        "a",
        case.batch,
        case.rows,
        case.columns,
        case.head,
        case.value_head,
        _load("q", q),
        _load("k", k),
        _load("v", v),
        1 / math.sqrt(case.head),
        case.causal,
        Load("mask", View(0, (*zeros, case.columns, 1)), "float32") if case.mask else None,
        (Store("y", View(0, tuple(result.stride())), Named("acc", "float32")),),
        "float32",
        empty_rows=case.empty_rows,
    )
    inputs = {"q": q, "k": k, "v": v, "mask": mask}
    printed = cpu_kernel.run(kernel, print_attention, inputs, {"y": result}, dict(case.choices))
    eager = _attention(list(inputs.values()), case)
    truth = _attention([tensor.double() for tensor in inputs.values()], case)
    assert torch.equal(result.isnan(), truth.isnan())
    assert bool(truth.isnan().any()) == (case.empty_rows == "nan")
    error, allowed = ((part.nan_to_num().double() - truth.nan_to_num()).norm() for part in (result, eager))
    assert float(error) <= 2 * float(allowed)
    assert all(printed.choices[name] == choice for name, choice in case.choices)


@pytest.mark.slow  # every value of every number; the others ask for a few
def test_epilogue_with_residual_and_every_tunable_value(cpu_kernel: Any) -> None:
    torch.manual_seed(1)
    q, k, v, residual = (torch.randn(2, 50, 32) for _ in range(4))
    truth = torch.softmax(q.double() @ k.double().mT, -1) @ v.double() + residual.double()
    y = torch.empty(2, 50, 32)
    total = Apply("add", (Named("acc", "float32"), _load("residual", residual)), "float32")
    kernel = AttentionKernel(
        "a",
        (2,),
        50,
        50,
        32,
        32,
        _load("q", q),
        _load("k", k),
        _load("v", v),
        1.0,
        False,
        None,
        (Store("y", View(0, tuple(y.stride())), total),),
        "float32",
    )
    inputs = {"q": q, "k": k, "v": v, "residual": residual}
    printed = cpu_kernel.run(kernel, print_attention, inputs, {"y": y})
    assert float((y - truth).norm() / truth.norm()) < 1e-6
    for tunable in printed.tunables:
        for value in (tunable.values[0], tunable.values[-1]):
            again = cpu_kernel.run(kernel, print_attention, inputs, {"y": y}, {tunable.name: value})
            assert again.choices[tunable.name] == value
            assert float((y - truth).norm() / truth.norm()) < 1e-6, (tunable.name, value)
