"""Scalar expressions over views of buffers: the computation of the intermediate form's kernels at each point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from foundry.knowledge.opgraph import DType


@dataclass(frozen=True)
class View:
    """An affine map from a kernel's iteration point to an element: offset + sum(strides[d] * index[d]).

    `strides` has one entry per iteration dimension of the kernel; 0 broadcasts.
    """

    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Load:
    """The element buffer[view]."""

    buffer: str
    view: View
    dtype: DType


@dataclass(frozen=True)
class Gather:
    """The element buffer[view + index * step]; `index` is an integer expression, valid for 0 <= index < bound (negative
    wraps).

    `fill` is the value for an index outside, None if PyTorch would raise.
    """

    buffer: str
    view: View
    index: Expr
    step: int
    bound: int
    dtype: DType
    fill: float | None = None


@dataclass(frozen=True)
class Iota:
    """The integer offset + sum(strides * index): arange, triangular masks, positions, under any view."""

    view: View
    dtype: DType = "int64"


@dataclass(frozen=True)
class Const:
    """A literal."""

    value: float | int | bool
    dtype: DType


@dataclass(frozen=True)
class Apply:
    """A scalar operation of SCALAR_OPS. `dtype` is the result's; arguments are cast by explicit "cast" nodes."""

    op: str
    args: tuple[Expr, ...]
    dtype: DType


@dataclass(frozen=True)
class Named:
    """A value that the kernel itself computes.

    Examples: a reduction's result or Let at this row, a scan's running value, the contraction's accumulator ("acc"),
    a pool's result ("acc").
    """

    name: str
    dtype: DType


Expr = Load | Gather | Iota | Const | Apply | Named

# Scalar operations whose functions stand in file/special.h.
SPECIAL_OPS: dict[str, int] = {
    **dict.fromkeys(["erfinv", "erfcx", "digamma", "i0", "i0e", "i1", "i1e"], 1),
    **dict.fromkeys(["bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1"], 1),
    **dict.fromkeys(["chebyshev_t", "chebyshev_u", "chebyshev_v", "chebyshev_w"], 2),
    **dict.fromkeys(["hermite_h", "hermite_he", "laguerre", "legendre", "zeta", "gcd"], 2),
}

# name -> number of arguments. Semantics are PyTorch's for the result dtype (NaN propagates through maximum and
# minimum; clamp is minimum(maximum(x, lo), hi); where(c, a, b) takes c != 0; gelu is exact erf, gelu_tanh the
# tanh form; div is true division, floordiv rounds down; remainder has the divisor's sign).
SCALAR_OPS: dict[str, int] = {
    **dict.fromkeys(["neg", "abs", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt"], 1),
    **dict.fromkeys(
        ["sin", "cos", "tan", "tanh", "sigmoid", "erf", "relu", "gelu", "gelu_tanh", "silu", "softplus"], 1
    ),
    **dict.fromkeys(["mish", "hardswish", "hardsigmoid", "sign", "floor", "ceil", "round", "trunc", "reciprocal"], 1),
    **dict.fromkeys(["square", "softsign", "selu", "logical_not", "isnan", "isinf", "cast"], 1),
    # Float32 as the upper half of an int64 with the same order, and back.
    **dict.fromkeys(["order_key", "of_order_key"], 1),
    **dict.fromkeys(["asin", "acos", "atan", "sinh", "cosh", "frac", "softplus", "logsigmoid"], 1),
    **dict.fromkeys(["add", "sub", "mul", "div", "floordiv", "remainder", "fmod", "pow", "maximum", "minimum"], 2),
    **dict.fromkeys(["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"], 2),
    **dict.fromkeys(["erfc", "lgamma", "asinh", "acosh", "atanh"], 1),
    **SPECIAL_OPS,
    **dict.fromkeys(["atan2", "hypot", "copysign", "nextafter"], 2),
    **dict.fromkeys(["bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"], 2),
    **dict.fromkeys(["leaky_relu", "elu", "threshold_leq"], 2),  # (x, slope), (x, alpha), (x, lambda)
    **dict.fromkeys(["where", "fma", "clamp"], 3),
}


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node of an expression, parents first."""
    yield expr
    if isinstance(expr, Apply):
        for argument in expr.args:
            yield from walk(argument)
    elif isinstance(expr, Gather):
        yield from walk(expr.index)
