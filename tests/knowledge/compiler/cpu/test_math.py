"""The CPU runtime's mathematics: as accurate as PyTorch's, right at the edges, and really vectorised."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from foundry.knowledge.compiler.file.texts import read_library_text

UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in ["exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt"]
    },
    **{name: getattr(torch, name) for name in ["sin", "cos", "tan", "tanh", "sigmoid", "erf", "sinh", "cosh", "sign"]},
    **{name: getattr(torch, name) for name in ["floor", "ceil", "round", "trunc", "square", "frac", "abs", "relu"]},
    **{
        name: getattr(functional, name)
        for name in ["silu", "softplus", "mish", "hardswish", "hardsigmoid", "softsign", "selu", "logsigmoid", "gelu"]
    },
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}
FLAGS = ["-std=c++17", "-O3", "-march=native", "-mprefer-vector-width=512", "-fno-math-errno", "-fno-trapping-math"]
EDGES = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-40, 3e38, 88.8, -88.0, -104.0]
EDGES += [1.0, -1.0, 0.5, -0.5, 2.5, 1.5]


def _loop(name: str, kind: str, call: str) -> str:
    return (
        f'extern "C" void {name}(const {kind}* __restrict x, const {kind}* __restrict z, {kind}* __restrict y, '
        f"int64_t n) {{ (void)z;\n#pragma omp simd\nfor (int64_t i = 0; i < n; ++i) y[i] = {call}; }}\n"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where math.so is, beside the list of loops that the compiler vectorised."""
    folder: Path = tmp_path_factory.mktemp("math")
    source = read_library_text("cpu/runtime.h")
    source += "".join(_loop(f"f_{name}", "float", f"math::{name}(x[i])") for name in UNARY)
    source += "".join(_loop(f"d_{name}", "double", f"math::{name}(x[i])") for name in UNARY)
    for name in ("pow", "remainder", "fmod", "floordiv", "maximum", "minimum"):
        source += _loop(f"f_{name}", "float", f"math::{name}(x[i], z[i])")
        source += _loop(f"i_{name}", "int64_t", f"math::{name}(x[i], z[i])")
    source += _loop("f_hypot", "float", "math::hypot(x[i], z[i])")
    for kind in ("float16", "bfloat16"):
        source += _loop(f"round_{kind}", "float", f"widen(narrow_{kind}(x[i]))")
    (folder / "math.cpp").write_text(source)
    command = ["g++", *FLAGS, "-fopenmp", "-shared", "-fPIC", "-fopt-info-vec-optimized", "math.cpp", "-o", "math.so"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    lines = source.splitlines()
    (folder / "vectorised").write_text(
        "\n".join(
            lines[int(note.split(":")[1]) - 3] for note in done.stderr.splitlines() if note.startswith("math.cpp:")
        )
    )
    return folder


@pytest.fixture(scope="module")
def library(folder: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(folder / "math.so"))


def call(library: ctypes.CDLL, name: str, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
    y = torch.empty_like(x)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, x if z is None else z, y)]
    library[name](*pointers, ctypes.c_int64(x.numel()))
    return y


def same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= 4e-7 * b.abs() + 1e-38)


@pytest.mark.parametrize("name", sorted(UNARY))
def test_error_against_float64_is_no_worse_than_twice_pytorch(library: ctypes.CDLL, name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(1 << 16, generator=generator)
    for x in (normal, normal * 30, normal * 1e-3, torch.rand(1 << 16, generator=generator) * 1000 + 1e-9):
        ours, eager, truth = call(library, f"f_{name}", x), UNARY[name](x), UNARY[name](x.double())
        known = torch.isfinite(truth) & (truth.abs() < 3e38) & torch.isfinite(eager)
        assert torch.equal(ours.isnan(), eager.isnan())
        if known.any():
            error = (ours.double() - truth)[known].norm()
            assert error <= 2 * (eager.double() - truth)[known].norm() + 1e-30


@pytest.mark.parametrize("name", sorted(set(UNARY) - {"sin", "cos", "tan"}))
def test_edges(library: ctypes.CDLL, name: str) -> None:
    x = torch.tensor(EDGES * 4)
    expected = UNARY[name](x)
    if name == "gelu":  # PyTorch's vector path loses the infinity that its definition and its scalar path give
        expected = torch.where(x == float("inf"), x, expected)
    ours = call(library, f"f_{name}", x)
    assert same(ours, expected).all(), [(a, b, c) for a, b, c in zip(x, ours, expected, strict=True)]


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "gelu", "mish", "softplus"])
def test_float64(library: ctypes.CDLL, name: str) -> None:
    x = torch.randn(1 << 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * 3
    expected = UNARY[name](x)
    known = torch.isfinite(expected)
    assert ((call(library, f"d_{name}", x) - expected)[known].norm() / expected[known].norm()) < 3e-16


def test_trigonometry_of_infinities_is_nan(library: ctypes.CDLL) -> None:
    x = torch.tensor([float("inf"), -float("inf"), float("nan")] * 8)
    for name in ("f_sin", "f_cos", "f_tan"):
        assert call(library, name, x).isnan().all()


def test_powers_follow_ieee(library: ctypes.CDLL) -> None:
    grid = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 3.0, -3.0, float("inf"), -float("inf"), float("nan")])
    base, exponent = (t.reshape(-1).contiguous() for t in torch.meshgrid(grid, grid, indexing="ij"))
    assert same(call(library, "f_pow", base, exponent), base**exponent).all()
    base, exponent = torch.rand(1 << 14) * 9, torch.randn(1 << 14) * 3
    truth = base.double() ** exponent.double()
    eager = (base**exponent).double()
    assert (call(library, "f_pow", base, exponent).double() - truth).norm() <= 2 * (eager - truth).norm()


@pytest.mark.parametrize(
    ("name", "reference"),
    [("remainder", torch.remainder), ("fmod", torch.fmod), ("floordiv", torch.floor_divide), ("pow", torch.pow)],
)
def test_integer_division_and_powers(
    library: ctypes.CDLL, name: str, reference: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    x = torch.arange(-20, 21).repeat_interleave(8).contiguous()
    z = torch.tensor([-7, -3, -2, -1, 1, 2, 3, 7]).repeat(41)
    if name == "pow":
        z = z.abs()
    assert torch.equal(call(library, f"i_{name}", x, z), reference(x, z))
    if name != "pow":
        close = call(library, f"f_{name}", x / 4, z.float())
        assert torch.allclose(close, reference(x / 4, z.float()))


def test_a_length_neither_overflows_nor_vanishes(library: ctypes.CDLL) -> None:
    grid = torch.tensor([0.0, 1.0, -3.0, 4.0, 1e-38, -3e38, math.inf, -math.inf, math.nan, 1e-42])
    x, z = (part.reshape(-1).contiguous() for part in torch.meshgrid(grid, grid, indexing="ij"))
    assert torch.allclose(call(library, "f_hypot", x, z), torch.hypot(x, z), rtol=1e-6, atol=0.0, equal_nan=True)


def test_nan_wins_in_maximum_and_minimum(library: ctypes.CDLL) -> None:
    x = torch.tensor([1.0, float("nan"), 2.0, float("nan")] * 5)
    z = torch.tensor([float("nan"), 3.0, 1.0, float("nan")] * 5)
    for name, reference in (("f_maximum", torch.maximum), ("f_minimum", torch.minimum)):
        assert same(call(library, name, x, z), reference(x, z)).all()


@pytest.mark.parametrize(("kind", "dtype"), [("float16", torch.float16), ("bfloat16", torch.bfloat16)])
def test_16_bit_types_round_to_nearest_even(library: ctypes.CDLL, kind: str, dtype: torch.dtype) -> None:
    bits = torch.randint(-(2**31), 2**31 - 1, (1 << 18,), dtype=torch.int32).view(torch.float32)
    x = torch.cat([bits, torch.randn(1 << 16) * torch.exp(torch.randn(1 << 16) * 5)])
    assert same(call(library, f"round_{kind}", x), x.to(dtype).float()).all()


def test_every_float32_function_vectorises(folder: Path) -> None:
    text = (folder / "vectorised").read_text()
    missing = [name for name in UNARY if f" f_{name}(" not in text]
    assert not missing


def test_logarithms_of_powers_are_exact(library: ctypes.CDLL) -> None:
    """A block's scale is a power of two by floor(log2(x)): just below an integer it would be half as large."""
    twos = 2.0 ** torch.arange(-149, 128).double()
    assert torch.equal(call(library, "f_log2", twos.float()), torch.arange(-149, 128).float())
    above = torch.nextafter(twos.float(), torch.tensor(math.inf))
    for x in (above, torch.nextafter(above, torch.tensor(math.inf)), torch.nextafter(twos.float(), torch.tensor(0.0))):
        normal = x[x > 2.0**-126]
        assert torch.equal(call(library, "f_log2", normal).floor(), torch.log2(normal).floor())
    tens = torch.tensor([float(f"1e{power}") for power in range(-37, 39)])
    assert torch.equal(call(library, "f_log10", tens), torch.arange(-37, 39).float())
