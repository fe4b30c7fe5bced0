"""Attention kernels with known truths for the CUDA printer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from tests.knowledge.compiler.cuda.cases import PRECISION_TOLERANCE, Case, F, load, op

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    AttentionKernel,
    Const,
    Expr,
    Iota,
    Named,
    Store,
    View,
)
from foundry.knowledge.opgraph import DType, contiguous_strides

HUGE = 2.0**17  # a product of scores and scale is rounded to whole numbers, and one key takes all
SHARP = 8.0  # scores so large that one key of a row takes nearly all of its weight


@dataclass(frozen=True)
class Heads:
    """Sizes and layout: `turned` swaps rows and heads in memory, as a split projection leaves them; `shared`: query
    heads of one key head; `upright`: neighbours in memory are rows, not elements of a head."""

    rows: int
    columns: int
    head: int
    value_head: int
    turned: bool = False
    shared: int = 1
    upright: bool = False
    spread: float = 1.0
    heads: int = 2

    def tensors(self, dtype: DType) -> list[torch.Tensor]:
        """Queries, keys and values of (2, heads, group, rows, head); keys have one for the group."""
        found = []
        for rows, head, group in (
            (self.rows, self.head, self.shared),
            (self.columns, self.head, 1),
            (self.columns, self.value_head, 1),
        ):
            shape = (2, rows, self.heads, group, head) if self.turned else (2, self.heads, group, rows, head)
            whole = (torch.randn(*shape) * self.spread).to(getattr(torch, dtype))
            whole = whole.mT.contiguous().mT if self.upright else whole
            found.append(whole.permute(0, 2, 3, 1, 4) if self.turned else whole)
        return found


def attention(
    heads: Heads,
    *,
    causal: bool = False,
    mask: Literal["", "added", "hidden", "keys", "lowest", "distance"] = "",
    scale: float = 0.3,
    dtype: DType = F,
    empty_rows: Literal["zero", "nan"] = "zero",
    **choices: Choice,
) -> Case:
    q, k, v = heads.tensors(dtype)
    batch, space = (2, heads.heads, heads.shared), (heads.rows, heads.columns)
    strides = [tuple(0 if s == 1 and d == 2 else t.stride(d) for d, s in enumerate(t.shape)) for t in (q, k, v)]
    shown, mask_inputs, added = _mask(mask, *space)
    out = contiguous_strides((*batch, heads.rows, heads.value_head))
    kernel = AttentionKernel(
        "attention",
        batch,
        *space,
        heads.head,
        heads.value_head,
        load("q", *strides[0], dtype=dtype),
        load("k", *strides[1], dtype=dtype),
        load("v", *strides[2], dtype=dtype),
        scale,
        causal,
        shown,
        (Store("y", View(0, out), op("cast", op("mul", Named("acc", F), Const(2.0, F)), dtype=dtype)),),
        F,
        empty_rows=empty_rows,
    )
    scores = q.double() @ k.double().mT * scale
    if added is not None:
        scores = scores + added.double()
    if causal:
        scores = scores.masked_fill(torch.ones(space, dtype=torch.bool).triu(1), -math.inf)
    weights = scores.softmax(-1)
    truth = 2 * ((weights.nan_to_num() if empty_rows == "zero" else weights) @ v.double())
    inputs = {"q": q, "k": k, "v": v} | mask_inputs
    precision = str(choices.get("precision", "ieee"))
    tolerance = 5 * PRECISION_TOLERANCE[precision] if precision in PRECISION_TOLERANCE else 3e-6
    ieee_only = precision == "ieee"
    return Case(kernel, inputs, {"y": truth.to(q.dtype)}, dict(choices), tolerance, ieee_only)


def _mask(kind: str, rows: int, columns: int) -> tuple[Expr | None, dict[str, torch.Tensor], torch.Tensor | None]:
    """The expression over (batch, heads, group, rows, columns), its input, and what it adds."""
    none = (0, 0, 0)
    if kind == "added":
        mask = torch.randn(rows, columns)
        mask[1 % rows] = -math.inf
        return load("mask", *none, columns, 1), {"mask": mask}, mask
    if kind == "lowest":  # what some models add instead of -inf; a row of it alone leaves the weights equal
        mask = torch.where(torch.rand(rows, columns) < 0.5, 0.0, torch.finfo(torch.float32).min)
        mask[1 % rows] = torch.finfo(torch.float32).min
        return load("mask", *none, columns, 1), {"mask": mask}, mask
    if kind == "distance":  # computed: beyond 20 nothing is seen, and near keys are preferred
        steps = (Iota(View(0, (*none, *step)), "int64") for step in ((1, 0), (0, 1)))
        far = op("abs", op("sub", *steps, dtype="int64"), dtype="int64")
        slope = op("neg", op("mul", load("slope", *none, 0, 0), op("cast", far, dtype=F)))
        value: Expr = op("where", op("gt", far, Const(20, "int64"), dtype="bool"), Const(-math.inf, F), slope)
        away = (torch.arange(rows)[:, None] - torch.arange(columns)).abs()
        return value, {"slope": torch.tensor([0.125])}, torch.where(away > 20, -math.inf, -0.125 * away)
    if kind:
        seen = torch.rand(rows if kind == "hidden" else 1, columns) < 0.6
        seen[:, 3] = True
        value = load("mask", *none, columns if kind == "hidden" else 0, 1, dtype="bool")
        hidden = Apply("where", (value, Const(0.0, F), Const(-math.inf, F)), F)
        return hidden, {"mask": seen}, torch.where(seen, 0.0, -math.inf).expand(rows, columns)
    return None, {}, None


ATTENTION: dict[str, Callable[[], Case]] = {
    "plain": lambda: attention(Heads(37, 70, 16, 40)),
    "causal": lambda: attention(Heads(40, 40, 32, 32), causal=True),
    "masked": lambda: attention(Heads(5, 33, 8, 8), mask="added"),
    "masked_by_hand": lambda: attention(Heads(5, 33, 8, 8), mask="added", empty_rows="nan"),
    "tf32": lambda: attention(Heads(37, 70, 16, 40), precision="tf32"),
    "tf32_wide": lambda: attention(Heads(33, 40, 64, 80), precision="tf32", warp_rows=32, warps=1),
    "tf32_turned": lambda: attention(Heads(70, 45, 32, 32, turned=True), causal=True, precision="tf32", keys=16),
    "tf32_padded": lambda: attention(Heads(9, 37, 10, 7, upright=True), precision="tf32", keys=32, stages=3),
    "x3": lambda: attention(Heads(37, 70, 24, 20), precision="tf32x3"),
    "x3_sharp": lambda: attention(Heads(37, 70, 24, 20, spread=SHARP), precision="tf32x3"),
    "x3_huge": lambda: attention(Heads(37, 70, 24, 20, spread=HUGE), precision="tf32x3"),
    "x3_masked": lambda: attention(Heads(20, 33, 8, 8), mask="added", precision="tf32x3"),
    "x3_masked_by_hand": lambda: attention(Heads(20, 34, 8, 8), mask="added", precision="tf32x3", empty_rows="nan"),
    "x3_lowest": lambda: attention(Heads(20, 34, 8, 8), mask="lowest", precision="tf32x3"),
    "distance": lambda: attention(Heads(37, 40, 16, 16), mask="distance"),
    "x3_distance": lambda: attention(Heads(37, 40, 16, 16), mask="distance", precision="tf32x3", empty_rows="nan"),
    "x3_hidden": lambda: attention(Heads(20, 34, 8, 8), mask="hidden", precision="tf32x3"),
    "x3_backwards": lambda: attention(Heads(20, 34, 8, 8), scale=-0.4, precision="tf32x3"),
    "x3_causal": lambda: attention(Heads(40, 52, 16, 16), causal=True, precision="tf32x3"),
    "x3_split": lambda: attention(Heads(1, 150, 16, 36), mask="keys", precision="tf32x3", keys=16, splits=8),
    "x3_causal_split": lambda: attention(
        Heads(35, 130, 16, 16), causal=True, precision="tf32x3", keys=16, splits=4, warps=1
    ),
    "float16": lambda: attention(Heads(37, 70, 48, 40), dtype="float16", precision="float16"),
    "float16_causal": lambda: attention(
        Heads(70, 70, 64, 64, turned=True),
        causal=True,
        dtype="float16",
        precision="float16",
        path="mma",
        warp_rows=32,
        warps=2,
    ),
    "float16_shared": lambda: attention(
        Heads(3, 100, 32, 32, shared=4), dtype="float16", precision="float16", splits=2, keys=32, stages=3
    ),
    "joined_heads": lambda: attention(
        Heads(1, 150, 16, 36, shared=4), mask="added", precision="tf32x3", keys=16, splits=4
    ),
    "turns": lambda: attention(
        Heads(200, 200, 64, 64, heads=1), dtype="float16", precision="float16", path="turns", warps=12, lazy=1
    ),
    "turns_huge": lambda: attention(
        Heads(70, 200, 64, 64, heads=1, spread=HUGE), dtype="bfloat16", precision="bfloat16", path="turns", keys=64
    ),
    "turns_wide": lambda: attention(
        Heads(70, 300, 96, 80, turned=True), dtype="bfloat16", precision="bfloat16", path="turns", keys=112, stages=3
    ),
    "turns_causal": lambda: attention(
        Heads(330, 260, 32, 64, heads=1, shared=2),
        causal=True,
        dtype="float16",
        precision="float16",
        path="turns",
        warps=12,
        keys=64,
        pass_by=1,
    ),
    "turns_masked": lambda: attention(
        Heads(70, 150, 40, 128, heads=1),
        mask="added",
        dtype="bfloat16",
        precision="bfloat16",
        path="turns",
        in_turn=0,
        lazy=1,
    ),
    "turns_added": lambda: attention(
        Heads(70, 152, 32, 64, heads=1),
        mask="added",
        dtype="float16",
        precision="float16",
        path="turns",
        shared_mask=1,
        keys=64,
    ),
    "turns_hidden": lambda: attention(
        Heads(70, 160, 16, 16, heads=1),
        mask="hidden",
        dtype="float16",
        precision="float16",
        path="turns",
        shared_mask=1,
        warps=4,
    ),
    "turns_distance": lambda: attention(
        Heads(70, 90, 64, 64), mask="distance", dtype="float16", precision="float16", path="turns", warps=4, keys=64
    ),
    "turns_split": lambda: attention(
        Heads(1, 500, 64, 64, shared=4, turned=True),
        dtype="bfloat16",
        precision="bfloat16",
        path="turns",
        warps=4,
        splits=2,
        keys=64,
    ),
    "bfloat16": lambda: attention(Heads(37, 70, 20, 24), dtype="bfloat16", precision="bfloat16"),
    "bfloat16_odd": lambda: attention(
        Heads(18, 33, 7, 9, upright=True), mask="hidden", dtype="bfloat16", precision="bfloat16", keys=16
    ),
    "bfloat16_split": lambda: attention(
        Heads(2, 150, 128, 128), mask="added", dtype="bfloat16", precision="bfloat16", keys=16, splits=4
    ),
}
