"""Matrix products printed, compiled and compared with float64 truth: edges, layouts, prologues, epilogues."""

from __future__ import annotations

import math
import platform
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from foundry.knowledge.compiler.cpu.contractions.gemm import print_gemm
from foundry.knowledge.compiler.cpu.contractions.gemm_form import is_of_bfloat16, to_canonical
from foundry.knowledge.compiler.ir.kernels import Apply, Expr, GemmKernel, Load, Named, Store, View
from foundry.knowledge.opgraph import contiguous_strides

ACC = Named("acc", "float32")


@dataclass(frozen=True)
class Case:
    m: int
    n: int
    k: int
    batch: tuple[int, ...] = ()
    a_transposed: bool = False
    b_transposed: bool = False
    c_transposed: bool = False
    shared_b: bool = False
    constant_b: bool = False
    choices: tuple[tuple[str, Any], ...] = ()


CASES = [
    Case(130, 77, 33),
    Case(37, 100, 421, b_transposed=True, constant_b=True),
    Case(61, 129, 530, a_transposed=True, choices=(("block_k", 128), ("order", "rows_outer"), ("prefetch", 8))),
    Case(96, 64, 200, c_transposed=True),
    Case(64, 160, 300, choices=(("pack_b", "no"), ("pack_a", "no"), ("schedule", "static"))),
    Case(33, 50, 70, batch=(5, 3), b_transposed=True),
    Case(33, 50, 70, batch=(3,), choices=(("parallel", "tiles"),)),
    Case(20, 48, 260, batch=(4,), shared_b=True, constant_b=True),
    Case(20, 48, 260, batch=(2, 3), shared_b=True, a_transposed=True),
    Case(1, 1000, 300),
    Case(5, 203, 1100, choices=(("splits", 4),)),
    Case(3, 70, 5000, b_transposed=True),
    Case(301, 1, 77),
    Case(301, 2, 77, a_transposed=True),
    Case(4, 100, 64, constant_b=True, b_transposed=True),
    Case(2, 96, 64, batch=(9,), b_transposed=True),
    Case(1, 1, 1),
]


def _matrix(batch: tuple[int, ...], rows: int, columns: int, flip: bool) -> tuple[torch.Tensor, tuple[int, ...]]:
    """A random matrix and its strides as (batch..., row, column), stored transposed when `flip`."""
    stored = torch.randn(*batch, columns, rows) if flip else torch.randn(*batch, rows, columns)
    strides = contiguous_strides(tuple(stored.shape))
    if flip:
        strides = (*strides[:-2], strides[-1], strides[-2])
    return stored, strides


def _kernel(case: Case) -> tuple[GemmKernel, dict[str, torch.Tensor], torch.Tensor]:
    a, a_strides = _matrix(case.batch, case.m, case.k, case.a_transposed)
    b_batch = () if case.shared_b else case.batch
    b, b_strides = _matrix(b_batch, case.k, case.n, case.b_transposed)
    b_strides = (*(0,) * (len(case.batch) - len(b_batch)), *b_strides)
    c, c_strides = _matrix(case.batch, case.m, case.n, case.c_transposed)
    bias = Load("bias", View(0, (0,) * len(case.batch) + (0, 1)), "float32")
    value: Expr = Apply("relu", (Apply("add", (ACC, bias), "float32"),), "float32")
    kernel = GemmKernel(
        "g",
        case.batch,
        case.m,
        case.n,
        case.k,
        Load("a", View(0, a_strides), "float32"),
        Load("b", View(0, b_strides), "float32"),
        (Store("c", View(0, c_strides), value),),
        "float32",
        constant_b=case.constant_b,
    )
    return kernel, {"a": a, "b": b, "bias": torch.randn(case.n)}, c


def _error(value: torch.Tensor, truth: torch.Tensor) -> float:
    return float((value.double() - truth).norm() / truth.norm().clamp_min(1e-30))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_product_with_bias_and_relu(cpu_kernel: Any, case: Case) -> None:
    torch.manual_seed(0)
    kernel, inputs, c = _kernel(case)
    cpu_kernel.run(kernel, print_gemm, inputs, {"c": c}, dict(case.choices), ("b",) if case.constant_b else ())
    a = inputs["a"].mT if case.a_transposed else inputs["a"]
    b = inputs["b"].mT if case.b_transposed else inputs["b"]
    got = c.mT if case.c_transposed else c
    truth = torch.relu(a.double() @ b.double() + inputs["bias"].double())
    eager = torch.relu(a @ b + inputs["bias"])
    assert _error(got, truth) <= 2 * _error(eager, truth) + 1e-7


@pytest.mark.slow  # every value of every number; the others ask for a few
def test_every_tunable_value_is_legal(cpu_kernel: Any) -> None:
    torch.manual_seed(0)
    kernel, inputs, c = _kernel(Case(45, 70, 300))
    truth = torch.relu(inputs["a"].double() @ inputs["b"].double() + inputs["bias"].double())
    printed = cpu_kernel.run(kernel, print_gemm, inputs, {"c": c})
    for tunable in printed.tunables:
        assert tunable.default in tunable.values
        for value in (tunable.values[0], tunable.values[-1]):
            if value != tunable.default:
                again = cpu_kernel.run(kernel, print_gemm, inputs, {"c": c}, {tunable.name: value})
                assert again.choices[tunable.name] == value
                assert _error(c, truth) < 1e-6, (tunable.name, value)


def test_prologue_and_residual_with_two_stores(cpu_kernel: Any) -> None:
    """silu(x * scale) @ w^T, then y = tanh(acc) + residual and the raw product, the residual read transposed."""
    torch.manual_seed(1)
    m, n, k = 50, 90, 70
    x, w, scale, residual = torch.randn(m, k), torch.randn(n, k), torch.randn(k), torch.randn(n, m)
    a = Apply(
        "silu",
        (Apply("mul", (Load("x", View(0, (k, 1)), "float32"), Load("scale", View(0, (0, 1)), "float32")), "float32"),),
        "float32",
    )
    tanh = Apply("tanh", (ACC,), "float32")
    total = Apply("add", (tanh, Load("residual", View(0, (1, m)), "float32")), "float32")
    kernel = GemmKernel(
        "g",
        (),
        m,
        n,
        k,
        a,
        Load("w", View(0, (1, k)), "float32"),
        (Store("y", View(0, (n, 1)), total), Store("raw", View(0, (n, 1)), ACC)),
        "float32",
        constant_b=True,
    )
    y, raw = torch.empty(m, n), torch.empty(m, n)
    inputs = {"x": x, "w": w, "scale": scale, "residual": residual}
    printed = cpu_kernel.run(kernel, print_gemm, inputs, {"y": y, "raw": raw}, None, ("w",))
    product = torch.nn.functional.silu(x.double() * scale.double()) @ w.double().T
    assert _error(raw, product) < 1e-6
    assert _error(y, torch.tanh(product) + residual.double().T) < 1e-6
    assert printed.prepare


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int64"])
def test_other_types(cpu_kernel: Any, dtype: Any) -> None:
    torch.manual_seed(2)
    m, n, k = 30, 45, 100
    kind = getattr(torch, dtype)
    a, b = (torch.randn(m, k) * 3).to(kind), (torch.randn(k, n) * 3).to(kind)
    value: Expr = Named("acc", dtype)
    kernel = GemmKernel(
        "g",
        (),
        m,
        n,
        k,
        Load("a", View(0, (k, 1)), dtype),
        Load("b", View(0, (n, 1)), dtype),
        (Store("c", View(0, (n, 1)), value),),
        dtype,
        constant_b=dtype == "float64",
    )
    c = torch.empty(m, n, dtype=kind)
    cpu_kernel.run(kernel, print_gemm, {"a": a, "b": b}, {"c": c}, None, ("b",))
    truth = a.double() @ b.double()
    bound = {"float64": 1e-15, "float16": 1e-3, "bfloat16": 5e-3, "int64": 0.0}[dtype]
    assert _error(c, truth) <= bound


def test_packing_one_block_of_k_at_a_time_when_b_is_large(cpu_kernel: Any) -> None:
    torch.manual_seed(3)
    cpu_kernel.device = replace(cpu_kernel.device, cache_bytes=1 << 20)
    kernel, inputs, c = _kernel(Case(20, 72, 40000))
    printed = cpu_kernel.run(kernel, print_gemm, inputs, {"c": c}, {"pack_b": "yes"})
    assert printed.workspace_bytes < inputs["b"].nbytes / 4
    truth = torch.relu(inputs["a"].double() @ inputs["b"].double() + inputs["bias"].double())
    eager = torch.relu(inputs["a"] @ inputs["b"] + inputs["bias"])
    assert _error(c, truth) <= 2 * _error(eager, truth)


def test_canonical_form_merges_rows_and_turns_tall_products() -> None:
    kernel, _, _ = _kernel(Case(20, 48, 16, batch=(4, 2), shared_b=True))
    assert to_canonical(kernel).batch == () and to_canonical(kernel).m == 160
    tall, _, _ = _kernel(Case(300, 2, 16))
    assert (to_canonical(tall).m, to_canonical(tall).n) == (2, 300)


@pytest.mark.parametrize(
    ("m", "n", "order", "constant_b", "choices"),
    [
        ((3, 41), (5, 16), (0, 2, 1, 3), False, {}),
        ((3, 41), (5, 16), (0, 2, 1, 3), False, {"block_k": 128}),
        ((7, 9), (3, 11), (2, 0, 3, 1), True, {}),
        ((2, 3), (4, 25), (2, 0, 1, 3), False, {"splits": 2}),
        ((50, 4), (2, 3), (0, 2, 1, 3), False, {}),
        ((66,), (3, 33), (1, 0, 2), False, {}),
        ((3, 41), (80,), (1, 0, 2), False, {}),
    ],
)
def test_stores_that_see_rows_and_columns_as_several_dimensions(
    cpu_kernel: Any, m: tuple[int, ...], n: tuple[int, ...], order: tuple[int, ...], constant_b: bool, choices: Any
) -> None:
    """(batch, *m, *n) permuted by `order` behind the batch, plus a number for each of the outermost of m and n."""
    torch.manual_seed(0)
    rows, columns, depth = math.prod(m), math.prod(n), 300
    shape = (2, *m, *n)
    a, b, each = torch.randn(2, rows, depth), torch.randn(depth, columns), torch.randn(m[0], n[0])
    c = torch.empty([2, *(shape[1 + axis] for axis in order)])
    strides = c.stride()
    stored = (strides[0], *(strides[1 + order.index(axis)] for axis in range(len(order))))
    of_each = (0, n[0], *(0,) * (len(m) - 1), 1, *(0,) * (len(n) - 1))
    kernel = GemmKernel(
        *("g", (2,), rows, columns, depth),
        Load("a", View(0, (rows * depth, depth, 1)), "float32"),
        Load("b", View(0, (0, columns, 1)), "float32"),
        (Store("c", View(0, stored), Apply("add", (ACC, Load("each", View(0, of_each), "float32")), "float32")),),
        "float32",
        constant_b=constant_b,
        m_sizes=m if len(m) > 1 else (),
        n_sizes=n if len(n) > 1 else (),
    )
    cpu_kernel.run(kernel, print_gemm, {"a": a, "b": b, "each": each}, {"c": c}, choices, ("b",) if constant_b else ())
    spread = each.reshape(m[0], *(1,) * (len(m) - 1), n[0], *(1,) * (len(n) - 1))
    truth = (a.double() @ b.double()).reshape(shape) + spread
    assert _error(c, truth.permute(0, *(1 + axis for axis in order))) < 1e-6


BFLOAT16_CASES = [
    Case(130, 77, 33),
    Case(37, 100, 421, b_transposed=True, constant_b=True),
    Case(61, 129, 1300, a_transposed=True, choices=(("block_k", 128), ("order", "rows_outer"), ("prefetch", 8))),
    Case(96, 64, 200, c_transposed=True),
    Case(150, 50, 701, batch=(5, 3), b_transposed=True, choices=(("block_k", 128),)),
    Case(33, 50, 70, batch=(3,), choices=(("parallel", "tiles"),)),
    Case(20, 48, 1001, batch=(4,), shared_b=True, constant_b=True, a_transposed=True),
    Case(4, 100, 64, constant_b=True, b_transposed=True),
    Case(9, 9, 1),
    Case(5, 203, 300),
]


@pytest.mark.parametrize("in_pairs", [True, False])
@pytest.mark.parametrize("case", BFLOAT16_CASES, ids=str)
def test_product_of_bfloat16(cpu_kernel: Any, monkeypatch: pytest.MonkeyPatch, case: Case, in_pairs: bool) -> None:
    """By the instruction that adds two products, where this machine has it, and without: infinities and NaN as well."""
    if not in_pairs:
        if platform.machine() != "x86_64":
            pytest.skip("other machines have no such instruction")
        module = sys.modules[type(cpu_kernel).__module__]
        monkeypatch.setattr(module, "FLAGS", [*module.FLAGS, "-mno-avx512bf16"])
    torch.manual_seed(0)
    kernel, inputs, c = _kernel(case)
    operands = {"a": inputs["a"].bfloat16(), "b": inputs["b"].bfloat16()}
    operands["a"].view(-1)[0], operands["b"].view(-1)[-1] = math.inf, math.nan
    casts = {name: Apply("cast", (replace(getattr(kernel, name), dtype="bfloat16"),), "float32") for name in operands}
    kernel = replace(kernel, **casts)  # type: ignore[arg-type]
    inputs |= operands
    printed = cpu_kernel.run(
        kernel, print_gemm, inputs, {"c": c}, dict(case.choices), ("b",) if case.constant_b else ()
    )
    assert ("PAIRS = 1" in printed.functions) == (printed.choices["algorithm"] == "packed")
    a = inputs["a"].mT if case.a_transposed else inputs["a"]
    b = inputs["b"].mT if case.b_transposed else inputs["b"]
    got = (c.mT if case.c_transposed else c).double()
    truth = torch.relu(a.double() @ b.double() + inputs["bias"].double())
    assert torch.equal(got.isfinite(), truth.isfinite())
    assert torch.equal(got.isnan(), truth.isnan())
    assert _error(got[got.isfinite()], truth[truth.isfinite()]) < 1e-6


def test_only_what_is_a_bfloat16_is_multiplied_as_one() -> None:
    """What is worked out from bfloat16 keeps its float32."""
    load = Load("x", View(0, (8, 1)), "bfloat16")
    wide = Apply("cast", (load,), "float32")
    assert is_of_bfloat16(load)
    assert is_of_bfloat16(wide)
    assert is_of_bfloat16(Apply("cast", (Apply("cast", (Apply("relu", (wide,), "float32"),), "bfloat16"),), "float32"))
    assert not is_of_bfloat16(Apply("relu", (wide,), "float32"))
    assert not is_of_bfloat16(replace(load, dtype="float16"))
    assert not is_of_bfloat16(Apply("cast", (replace(load, dtype="float32"),), "float32"))
