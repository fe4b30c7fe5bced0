"""Special functions, signs and integers of single elements: the plan, the C++ and the CUDA text mean PyTorch's own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forking import Forks
from tests.knowledge.compiler.conftest import native_device
from tests.knowledge.compiler.cuda.test_module import H200
from tests.knowledge.compiler.lowering import check
from tests.knowledge.compiler.whole import candidate, outputs_of, together, wrong_when_emulated

special = torch.special
X = torch.cat(
    [torch.linspace(-12.3, 12.3, 61), torch.tensor([0.0, -0.0, 1.0, -1.0, 45.0, -30.0, torch.inf, torch.nan])]
)
UNIT = torch.linspace(-1, 1, 41)
PAIRS = torch.tensor([0.0, -0.0, 1.0, -2.5, torch.inf, -torch.inf, torch.nan]).expand(7, 7)
WHOLE = torch.tensor([0, 1, -4, 6, 12, -18, 35]).expand(7, 7)
DEGREES = torch.arange(9.0)[:, None]

SPECIAL: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "gamma": (lambda x: (torch.lgamma(x), torch.digamma(x)), [X[:-2]]),
    "derivatives of digamma": (lambda x: tuple(torch.polygamma(n, x) for n in (0, 1, 2, 4)), [X[:-2].abs() + 0.1]),
    "zeta": (lambda x: special.zeta(x.abs() + 1.5, 0.7), [X]),
    "error functions": (lambda x: (torch.erfc(x), special.erfcx(x), special.log_ndtr(x)), [X]),
    "its inverse": (torch.erfinv, [torch.cat([UNIT, UNIT * 1.1])]),
    "areas": (lambda x, u: (torch.asinh(x), torch.acosh(x), torch.atanh(u)), [X, UNIT]),
    "modified Bessel": (lambda x: (torch.i0(x), special.i0e(x), special.i1(x), special.i1e(x)), [X[:-2]]),
    "Bessel": (lambda x: (special.bessel_j0(x), special.bessel_j1(x), special.spherical_bessel_j0(x)), [X[:-2]]),
    "Bessel of the second kind": (lambda x: (special.bessel_y0(x), special.bessel_y1(x)), [X[:61].abs() + 0.05]),
    "Chebyshev": (
        lambda x, n: (special.chebyshev_polynomial_t(x, n), special.shifted_chebyshev_polynomial_u(x, n)),
        [UNIT, DEGREES],
    ),
    "Hermite": (
        lambda x, n: (special.hermite_polynomial_h(x, n), special.hermite_polynomial_he(x, n)),
        [UNIT * 2, DEGREES],
    ),
    "Legendre": (
        lambda x, n: (special.legendre_polynomial_p(x, n), special.laguerre_polynomial_l(x, n)),
        [UNIT * 2, DEGREES],
    ),
    "signs": (lambda a: (torch.copysign(a, a.mT), torch.signbit(a), torch.angle(a)), [PAIRS]),
    "with NaN left out": (lambda a: (torch.fmax(a, a.mT), torch.fmin(a, a.mT)), [PAIRS]),
    "neighbours": (lambda a: torch.nextafter(a, a.mT), [PAIRS]),
    "divisors": (lambda a: (torch.gcd(a, a.mT), torch.lcm(a, a.mT)), [WHOLE]),
    "powers": (lambda a: torch.float_power(a, a.mT), [PAIRS]),
    "outer sums": (lambda m, a, b: torch.addr(m, a, b, beta=2, alpha=0.5), [PAIRS, UNIT[:7], UNIT[7:14]]),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions_are_one_expression(name: str) -> None:
    function, inputs = SPECIAL[name]
    check(function, *inputs)


ALL, INPUTS = together(SPECIAL.values())


@pytest.mark.slow
def test_in_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    dense = [tensor.clone(memory_format=torch.contiguous_format) for tensor in INPUTS]
    text = candidate(ALL, dense, native_device())
    for got, wanted in zip(outputs_of(text, dense), ALL(*dense), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=1e-5, equal_nan=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
def test_in_cuda(forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    dense = [tensor.clone(memory_format=torch.contiguous_format) for tensor in INPUTS]
    assert not wrong_when_emulated(forks, candidate(ALL, dense, H200), dense, ALL(*dense), tmp_path, 2e-5)
