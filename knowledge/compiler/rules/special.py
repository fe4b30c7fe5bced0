"""Lowers functions of single elements that models use rarely: inverse and special functions, signs, integers."""

from __future__ import annotations

import math

from foundry.knowledge.compiler.ir.kernels import Expr
from foundry.knowledge.compiler.rules.builder import (
    FLOATS,
    Builder,
    Unsupported,
    apply,
    compute_dtype,
    const,
    integer,
    number,
    rule,
    scalar,
)
from foundry.knowledge.compiler.rules.pointwise import operand
from foundry.knowledge.opgraph import DType, Op

_UNARY = {name: name for name in ("erfc", "erfinv", "lgamma", "digamma", "asinh", "acosh", "atanh", "i0")} | {
    **{f"special_{name}": name for name in ("erfcx", "i0", "i0e", "i1", "i1e")},
    **{f"special_{name}": name for name in ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1")},
    "special_modified_bessel_i0": "i0",
    "special_modified_bessel_i1": "i1",
}
_POLYNOMIALS = {
    **{f"special_chebyshev_polynomial_{kind}": f"chebyshev_{kind}" for kind in "tuvw"},
    **{f"special_shifted_chebyshev_polynomial_{kind}": f"chebyshev_{kind}" for kind in "tuvw"},
    "special_hermite_polynomial_h": "hermite_h",
    "special_hermite_polynomial_he": "hermite_he",
    "special_laguerre_polynomial_l": "laguerre",
    "special_legendre_polynomial_p": "legendre",
}


MOST_DERIVATIVES = 20  # order of polygamma; factorials of larger numbers leave float32


def _operands(builder: Builder, op: Op, count: int) -> tuple[list[Expr], DType]:
    """The first operands in the dtype that the result is computed in, and that dtype."""
    dtype = compute_dtype(op.outputs[0].spec.dtype)
    return [operand(builder, op, item, dtype) for item in op.args[:count]], dtype


@rule(*_UNARY)
def _unary(builder: Builder, op: Op) -> None:
    """Lowers functions with one scalar operation of the same name."""
    (value,), _ = _operands(builder, op, 1)
    builder.pointwise(op, apply(_UNARY[op.kind], value))


@rule(*_POLYNOMIALS)
def _polynomial(builder: Builder, op: Op) -> None:
    """Lowers orthogonal polynomials of a degree that is a number or a tensor."""
    (value, degree), dtype = _operands(builder, op, 2)
    if "shifted" in op.kind:
        value = scalar("sub", scalar("mul", value, 2.0), 1.0)
    builder.pointwise(op, apply(_POLYNOMIALS[op.kind], value, degree, dtype=dtype))


@rule("special_zeta", "gcd")
def _of_two(builder: Builder, op: Op) -> None:
    """Lowers zeta and gcd."""
    (left, right), _ = _operands(builder, op, 2)
    builder.pointwise(op, apply(op.kind.removeprefix("special_"), left, right))


@rule("lcm")
def _lcm(builder: Builder, op: Op) -> None:
    """Lowers lcm: |x / gcd(x, y) * y|; 0 if both are."""
    (left, right), dtype = _operands(builder, op, 2)
    shared = apply("maximum", apply("gcd", left, right), const(1, dtype))
    builder.pointwise(op, apply("abs", apply("mul", apply("floordiv", left, shared), right)))


@rule("polygamma", "special_polygamma")
def _polygamma(builder: Builder, op: Op) -> None:
    """Lowers polygamma: digamma, or its derivative of order n, (-1)^(n+1) n! zeta(n + 1, x)."""
    order = integer(op, 0, "n")
    dtype = compute_dtype(op.outputs[0].spec.dtype)
    value = operand(builder, op, op.args[1], dtype)
    if order == 0:
        builder.pointwise(op, apply("digamma", value))
        return
    if order > MOST_DERIVATIVES:
        raise Unsupported("a derivative of high order")
    factor = (1 if order % 2 else -1) * math.factorial(order)
    builder.pointwise(op, scalar("mul", apply("zeta", const(order + 1.0, dtype), value), float(factor)))


@rule("copysign", "nextafter")
def _signed(builder: Builder, op: Op) -> None:
    """Lowers copysign, and nextafter of float32 and float64."""
    (left, right), dtype = _operands(builder, op, 2)
    if op.kind == "nextafter" and dtype != op.outputs[0].spec.dtype:
        raise Unsupported("the next number of 16 bits")
    builder.pointwise(op, apply(op.kind, left, right))


@rule("signbit")
def _signbit(builder: Builder, op: Op) -> None:
    """Lowers signbit: true for -0.0 and for NaN with the sign set."""
    dtype = compute_dtype(builder.tensor(op.args[0]).dtype)
    value = operand(builder, op, op.args[0], dtype)
    sign = apply("copysign", const(1.0, dtype), value) if dtype in FLOATS else value
    builder.pointwise(op, _is_below_zero(sign))


@rule("angle")
def _angle(builder: Builder, op: Op) -> None:
    """Lowers angle of real numbers: pi below zero, else 0; NaN stays."""
    (value,), dtype = _operands(builder, op, 1)
    found = apply("where", _is_below_zero(value), const(math.pi, dtype), const(0.0, dtype), dtype=dtype)
    builder.pointwise(op, apply("where", apply("isnan", value, dtype="bool"), value, found, dtype=dtype))


def _is_below_zero(value: Expr) -> Expr:
    return apply("lt", value, const(0, value.dtype), dtype="bool")


@rule("fmax", "fmin")
def _fmax(builder: Builder, op: Op) -> None:
    """Lowers fmax and fmin, which leave NaN out if the other number is none."""
    (left, right), dtype = _operands(builder, op, 2)
    found = apply("maximum" if op.kind == "fmax" else "minimum", left, right)
    if dtype in FLOATS:
        for value, other in ((left, right), (right, left)):
            found = apply("where", apply("isnan", value, dtype="bool"), other, found, dtype=dtype)
    builder.pointwise(op, found)


@rule("float_power")
def _float_power(builder: Builder, op: Op) -> None:
    """Lowers float_power: pow in float64."""
    (base, exponent), _ = _operands(builder, op, 2)
    builder.pointwise(op, apply("pow", base, exponent))


@rule("addr")
def _addr(builder: Builder, op: Op) -> None:
    """Lowers addr: beta * input + alpha * (column * row)."""
    dtype = compute_dtype(op.outputs[0].spec.dtype)
    shape = op.outputs[0].spec.shape
    column, row = builder.tensor(op.args[1]), builder.tensor(op.args[2])
    tall = builder.expand(builder.reshape(column, (shape[0], 1), op), shape, op)
    wide = builder.expand(row, shape, op)
    beta, alpha = number(op, 3, "beta", 1), number(op, 4, "alpha", 1)
    product = apply("mul", tall.computed, wide.computed)
    product = product if alpha == 1 else scalar("mul", product, alpha)
    if beta == 0:
        builder.pointwise(op, product)
        return
    base = operand(builder, op, op.args[0], dtype)
    builder.pointwise(op, apply("add", base if beta == 1 else scalar("mul", base, beta), product))
