"""Lowers operators that are one scalar expression of their operands' elements."""

from __future__ import annotations

import math

from foundry.knowledge.compiler.ir.kernels import Expr, View
from foundry.knowledge.compiler.rules.builder import (
    FLOATS,
    Builder,
    Tensor,
    Unsupported,
    apply,
    argument,
    cast,
    compute_dtype,
    const,
    flag,
    number,
    promote,
    rule,
    scalar,
)
from foundry.knowledge.opgraph import ITEM_BYTES, Argument, DType, Op, Ref, contiguous_strides

# ATen name -> scalar operation of the same meaning.
_SAME_NAME = """
    neg abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan tanh sigmoid erf relu silu mish hardswish
    hardsigmoid sign floor ceil round trunc reciprocal square selu asin acos atan sinh cosh frac
"""
_UNARY = {name: name for name in _SAME_NAME.split()} | {
    "log_sigmoid": "logsigmoid",
    "sgn": "sign",
    "special_expm1": "expm1",
    "special_expit": "sigmoid",
}
_BINARY = {
    "maximum": "maximum",
    "minimum": "minimum",
    "fmod": "fmod",
    "remainder": "remainder",
    "atan2": "atan2",
    "hypot": "hypot",
    "floor_divide": "floordiv",
    "bitwise_and": "bit_and",
    "bitwise_or": "bit_or",
    "bitwise_xor": "bit_xor",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "logical_xor": "logical_xor",
    "__and__": "bit_and",
    "__or__": "bit_or",
    "__xor__": "bit_xor",
}
_LOGICAL_OF_BITS = {"bit_and": "logical_and", "bit_or": "logical_or", "bit_xor": "logical_xor"}
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_FULL_NAMES = {
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "not_equal": "ne",
}


def _result(op: Op) -> tuple[tuple[int, ...], DType]:
    """The shape of the result and the dtype it is computed in."""
    spec = op.outputs[0].spec
    return spec.shape, compute_dtype(spec.dtype)


def operand(builder: Builder, op: Op, item: Argument, dtype: DType) -> Expr:
    """A tensor broadcast to the result's shape, or a number, as an expression of `dtype`. Raises Unsupported for
    anything else."""
    if isinstance(item, Ref):
        tensor = builder.expand(builder.tensor(item), op.outputs[0].spec.shape, op)
        return cast(tensor.expr, dtype)
    if isinstance(item, bool | int | float):
        return const(item, dtype)
    raise Unsupported(f"{op.target}: operand {item!r}")


def _first(builder: Builder, op: Op) -> Expr:
    """The first operand in the dtype that the result is computed in."""
    return operand(builder, op, op.args[0], _result(op)[1])


@rule(*_UNARY)
def _unary(builder: Builder, op: Op) -> None:
    """Lowers operators with one scalar operation of the same meaning. Raises Unsupported for round to decimals."""
    if op.kind == "round" and (len(op.args) > 1 or op.kwargs.get("decimals")):
        raise Unsupported("round to decimals")
    builder.pointwise(op, apply(_UNARY[op.kind], _first(builder, op)))


@rule("add", "sub", "rsub", "subtract")
def _add(builder: Builder, op: Op) -> None:
    """Lowers add, sub and rsub: left + alpha * right, or left - alpha * right."""
    dtype = _result(op)[1]
    left, right = (operand(builder, op, item, dtype) for item in op.args[:2])
    alpha = number(op, 2, "alpha", 1)
    kind = "add" if op.kind == "add" else "sub"
    if op.kind == "rsub":
        left, right = right, left
        if alpha != 1:
            left, right = left, scalar("mul", right, alpha)
    elif alpha != 1:
        right = scalar("mul", right, alpha)
    if dtype == "bool":
        kind = "logical_or"
    builder.pointwise(op, apply(kind, left, right))


@rule("mul", "multiply")
def _mul(builder: Builder, op: Op) -> None:
    """Lowers mul; of bools it is `and`."""
    dtype = _result(op)[1]
    left, right = (operand(builder, op, item, dtype) for item in op.args[:2])
    builder.pointwise(op, apply("logical_and" if dtype == "bool" else "mul", left, right))


@rule("div", "true_divide", "divide")
def _div(builder: Builder, op: Op) -> None:
    """Lowers div: exact, rounded down ("floor") or toward zero ("trunc")."""
    dtype = _result(op)[1]
    left, right = (operand(builder, op, item, dtype) for item in op.args[:2])
    mode = argument(op, 2, "rounding_mode")
    if mode == "floor":
        builder.pointwise(op, apply("floordiv", left, right))
    elif mode == "trunc" and dtype not in FLOATS:
        builder.pointwise(op, apply("floordiv", apply("sub", left, apply("fmod", left, right)), right))
    elif mode == "trunc":
        builder.pointwise(op, apply("trunc", apply("div", left, right)))
    else:
        builder.pointwise(op, apply("div", left, right))


@rule("pow")
def _pow(builder: Builder, op: Op) -> None:
    """Lowers pow; of integers only the square. Raises Unsupported for other integer powers."""
    dtype = _result(op)[1]
    base, exponent = (operand(builder, op, item, dtype) for item in op.args[:2])
    if dtype not in FLOATS and op.args[1] == 2:
        builder.pointwise(op, apply("mul", base, base))
        return
    if dtype not in FLOATS:
        raise Unsupported("integer power")
    builder.pointwise(op, apply("pow", base, exponent))


@rule(*_BINARY)
def _binary(builder: Builder, op: Op) -> None:
    """Lowers operators with one scalar operation of two operands."""
    dtype = _result(op)[1]
    kind = _BINARY[op.kind]
    if kind.startswith("logical"):
        left, right = (_truth(operand(builder, op, item, _own_dtype(builder, item))) for item in op.args[:2])
    else:
        left, right = (operand(builder, op, item, dtype) for item in op.args[:2])
        if dtype == "bool":
            kind = _LOGICAL_OF_BITS.get(kind, kind)
    builder.pointwise(op, apply(kind, left, right))


@rule("bitwise_left_shift", "__lshift__", "bitwise_right_shift", "__rshift__")
def _shift(builder: Builder, op: Op) -> None:
    """Lowers shifts of integers. A shift by a negative number, or by more bits than there are, shifts all bits out, as
    in PyTorch. Raises Unsupported for floats and bools."""
    dtype = _result(op)[1]
    if dtype in FLOATS or dtype == "bool":
        raise Unsupported(f"{op.kind} of {dtype}")
    value, by = (operand(builder, op, item, dtype) for item in op.args[:2])
    is_left = "left" in op.kind or "lshift" in op.kind
    is_signed = dtype != "uint8"
    most = 8 * ITEM_BYTES[dtype] - int(is_signed and not is_left)  # a right shift of a signed number keeps the sign bit
    amount = op.args[1]
    if isinstance(amount, int) and 0 <= amount < most:
        builder.pointwise(op, apply("shift_left" if is_left else "shift_right", value, by))
        return
    zero, end = const(0, dtype), const(most, dtype)
    is_inside = apply("logical_and", apply("ge", by, zero, dtype="bool"), apply("lt", by, end, dtype="bool"))
    if is_left:
        shifted = apply("shift_left", value, apply("where", is_inside, by, zero, dtype=dtype))
        builder.pointwise(op, apply("where", is_inside, shifted, zero, dtype=dtype))
    else:
        builder.pointwise(op, apply("shift_right", value, apply("where", is_inside, by, end, dtype=dtype)))


@rule("max", "min")
def _max_of_two(builder: Builder, op: Op) -> None:
    """Lowers max and min of two tensors; their reductions are registered over this rule (reduce.py)."""
    dtype = _result(op)[1]
    left, right = (operand(builder, op, item, dtype) for item in op.args[:2])
    builder.pointwise(op, apply("maximum" if op.kind == "max" else "minimum", left, right))


def _own_dtype(builder: Builder, item: Argument) -> DType:
    """The dtype of an operand itself; Python numbers count as int64 or float32."""
    if isinstance(item, Ref):
        return builder.tensor(item).dtype
    return "bool" if isinstance(item, bool) else "int64" if isinstance(item, int) else "float32"


def _truth(expr: Expr) -> Expr:
    """The expression as a bool: true if it is not zero."""
    return expr if expr.dtype == "bool" else apply("ne", expr, const(0, expr.dtype), dtype="bool")


def _common(builder: Builder, left: Argument, right: Argument) -> DType:
    """The dtype that two operands are compared in: tensors with dimensions take precedence over scalars of the same
    category."""
    dtypes = [_own_dtype(builder, item) for item in (left, right)]
    ranks = [isinstance(item, Ref) and bool(builder.tensor(item).shape) for item in (left, right)]
    if ranks[0] != ranks[1]:
        strong, weak = (dtypes[0], dtypes[1]) if ranks[0] else (dtypes[1], dtypes[0])
        same_category = (strong in FLOATS) >= (weak in FLOATS) and not (strong == "bool" and weak != "bool")
        return compute_dtype(strong if same_category else weak)
    return compute_dtype(promote(dtypes[0], dtypes[1]))


@rule(*_COMPARE, *_FULL_NAMES)
def _compare(builder: Builder, op: Op) -> None:
    """Lowers comparisons."""
    dtype = _common(builder, op.args[0], op.args[1])
    left, right = (operand(builder, op, item, dtype) for item in op.args[:2])
    builder.pointwise(op, apply(_FULL_NAMES.get(op.kind, op.kind), left, right, dtype="bool"))


@rule("logical_not", "bitwise_not", "isnan", "isinf", "isfinite")
def _predicate(builder: Builder, op: Op) -> None:
    """Lowers logical_not, bitwise_not, isnan, isinf and isfinite."""
    value = operand(builder, op, op.args[0], compute_dtype(_own_dtype(builder, op.args[0])))
    if op.kind == "bitwise_not" and value.dtype != "bool":
        builder.pointwise(op, scalar("bit_xor", value, -1))
    elif op.kind in ("logical_not", "bitwise_not"):
        builder.pointwise(op, apply("logical_not", _truth(value)))
    elif op.kind == "isfinite":
        infinite, undefined = (apply(kind, value, dtype="bool") for kind in ("isinf", "isnan"))
        builder.pointwise(op, apply("logical_not", apply("logical_or", infinite, undefined)))
    else:
        builder.pointwise(op, apply(op.kind, value, dtype="bool"))


@rule("where")
def _where(builder: Builder, op: Op) -> None:
    """Lowers where with three arguments. Raises Unsupported for one: the result's size depends on the data."""
    if len(op.args) != 3:
        raise Unsupported("where with one argument has a size that depends on the data")
    dtype = op.outputs[0].spec.dtype
    condition = _truth(operand(builder, op, op.args[0], _own_dtype(builder, op.args[0])))
    left, right = (operand(builder, op, item, dtype) for item in op.args[1:3])
    builder.pointwise(op, apply("where", condition, left, right, dtype=dtype))


@rule("masked_fill")
def _masked_fill(builder: Builder, op: Op) -> None:
    """Lowers masked_fill."""
    dtype = op.outputs[0].spec.dtype
    value, mask, fill = op.args[:3]
    condition = _truth(operand(builder, op, mask, _own_dtype(builder, mask)))
    kept = operand(builder, op, value, dtype)
    builder.pointwise(op, apply("where", condition, operand(builder, op, fill, dtype), kept, dtype=dtype))


@rule("clamp", "clip", "hardtanh", "relu6", "clamp_min", "clamp_max")
def _clamp(builder: Builder, op: Op) -> None:
    """Lowers clamp, clamp_min, clamp_max, hardtanh and relu6 to minimum and maximum with their bounds."""
    dtype = _result(op)[1]
    value = _first(builder, op)
    low: Argument = None
    high: Argument = None
    if op.kind == "hardtanh":
        low, high = argument(op, 1, "min_val", -1.0), argument(op, 2, "max_val", 1.0)
    elif op.kind == "relu6":
        low, high = 0, 6
    elif op.kind == "clamp_min":
        low = op.args[1]
    elif op.kind == "clamp_max":
        high = op.args[1]
    else:
        low, high = argument(op, 1, "min"), argument(op, 2, "max")
    if low is not None and high is not None:
        bounds = (operand(builder, op, item, dtype) for item in (low, high))
        value = apply("clamp", value, *bounds)
    elif low is not None:
        value = apply("maximum", value, operand(builder, op, low, dtype))
    elif high is not None:
        value = apply("minimum", value, operand(builder, op, high, dtype))
    builder.pointwise(op, value)


@rule("gelu")
def _gelu(builder: Builder, op: Op) -> None:
    """Lowers gelu, exact or by tanh."""
    kind = "gelu_tanh" if argument(op, 1, "approximate", "none") == "tanh" else "gelu"
    builder.pointwise(op, apply(kind, _first(builder, op)))


@rule("leaky_relu")
def _leaky_relu(builder: Builder, op: Op) -> None:
    """Lowers leaky_relu."""
    builder.pointwise(op, scalar("leaky_relu", _first(builder, op), number(op, 1, "negative_slope", 0.01)))


@rule("elu", "celu")
def _elu(builder: Builder, op: Op) -> None:
    """Lowers elu and celu: x above 0, alpha * (exp(x) - 1) below, with their scales."""
    value = _first(builder, op)
    alpha = number(op, 1, "alpha", 1.0)
    scale = number(op, 2, "scale", 1.0) if op.kind == "elu" else 1.0
    inner = number(op, 3, "input_scale", 1.0) if op.kind == "elu" else 1.0 / alpha
    if scale == 1.0 and inner == 1.0:
        builder.pointwise(op, scalar("elu", value, alpha))
        return
    negative = scalar("mul", apply("expm1", scalar("mul", value, inner)), alpha * scale)
    positive = scalar("mul", value, scale)
    builder.pointwise(op, apply("where", _above(value, 0.0), positive, negative, dtype=value.dtype))


def _above(value: Expr, bound: float) -> Expr:
    """True where value > bound."""
    return apply("gt", value, const(bound, value.dtype), dtype="bool")


@rule("softplus")
def _softplus(builder: Builder, op: Op) -> None:
    """Lowers softplus; above the threshold it is the identity."""
    value = _first(builder, op)
    beta, threshold = number(op, 1, "beta", 1), number(op, 2, "threshold", 20)
    if beta == 1 and threshold == 20:
        builder.pointwise(op, apply("softplus", value))
        return
    scaled = scalar("mul", value, beta)
    soft = scalar("div", apply("log1p", apply("exp", scaled)), beta)
    builder.pointwise(op, apply("where", _above(scaled, threshold), value, soft, dtype=value.dtype))


@rule("threshold", "hardshrink", "softshrink")
def _threshold(builder: Builder, op: Op) -> None:
    """Lowers threshold, hardshrink and softshrink."""
    value = _first(builder, op)
    dtype = value.dtype
    if op.kind == "threshold":
        below = apply("le", value, const(number(op, 1, "threshold"), dtype), dtype="bool")
        builder.pointwise(op, apply("where", below, const(number(op, 2, "value"), dtype), value, dtype=dtype))
        return
    bound = number(op, 1, "lambd", 0.5)
    if op.kind == "softshrink":
        inside = apply("clamp", value, const(-bound, dtype), const(bound, dtype))
        builder.pointwise(op, apply("sub", value, inside))
        return
    small = apply("le", apply("abs", value), const(bound, dtype), dtype="bool")
    builder.pointwise(op, apply("where", small, const(0.0, dtype), value, dtype=dtype))


@rule("softsign")
def _softsign(builder: Builder, op: Op) -> None:
    """Lowers softsign: x / (1 + |x|)."""
    builder.pointwise(op, apply("softsign", _first(builder, op)))


@rule("prelu", "_prelu_kernel")
def _prelu(builder: Builder, op: Op) -> None:
    """Lowers prelu with one weight, or one per channel."""
    shape, dtype = _result(op)
    value = _first(builder, op)
    weight = builder.tensor_at(op, 1, "weight")
    if weight.numel == 1:
        slope = builder.expand(builder.reshape(weight, (), op), shape, op)
    elif weight.shape != shape and len(weight.shape) == 1:
        column = builder.reshape(weight, weight.shape + (1,) * (len(shape) - 2), op)
        slope = builder.expand(column, shape, op)
    else:
        slope = builder.expand(weight, shape, op)
    scaled = apply("mul", cast(slope.expr, dtype), value)
    builder.pointwise(op, apply("where", _above(value, 0.0), value, scaled, dtype=dtype))


@rule("glu")
def _glu(builder: Builder, op: Op) -> None:
    """Lowers glu: the first half times the sigmoid of the second."""
    source = builder.tensor_at(op, 0, "self")
    axis = source.axis(int(number(op, 1, "dim", -1)))
    half = source.shape[axis] // 2
    value, gate = (take(builder, op, source, axis, start, length=half) for start in (0, half))
    builder.pointwise(op, apply("mul", value.computed, apply("sigmoid", gate.computed)))


def take(builder: Builder, op: Op, tensor: Tensor, axis: int, start: int, length: int, step: int = 1) -> Tensor:
    """`tensor[..., start : start + length * step : step, ...]` along `axis`."""
    strides = list(contiguous_strides(tensor.shape))
    offset = start * strides[axis]
    strides[axis] *= step
    shape = (*tensor.shape[:axis], length, *tensor.shape[axis + 1 :])
    return builder.reindex(tensor, View(offset, tuple(strides)), shape, op)


@rule("addcmul", "addcdiv")
def _addcmul(builder: Builder, op: Op) -> None:
    """Lowers addcmul and addcdiv."""
    dtype = _result(op)[1]
    base, left, right = (operand(builder, op, item, dtype) for item in op.args[:3])
    product = apply("mul" if op.kind == "addcmul" else "div", left, right)
    scale = number(op, 3, "value", 1)
    builder.pointwise(op, apply("add", base, product if scale == 1 else scalar("mul", product, scale)))


@rule("lerp")
def _lerp(builder: Builder, op: Op) -> None:
    """Lowers lerp. PyTorch's two branches keep both end points exact."""
    dtype = _result(op)[1]
    start, end, weight = (operand(builder, op, item, dtype) for item in op.args[:3])
    span = apply("sub", end, start)
    low = apply("add", start, apply("mul", weight, span))
    high = apply("sub", end, apply("mul", span, apply("sub", const(1.0, dtype), weight)))
    near = apply("lt", apply("abs", weight), const(0.5, dtype), dtype="bool")
    builder.pointwise(op, apply("where", near, low, high, dtype=dtype))


@rule("xlogy", "special_xlogy")
def _xlogy(builder: Builder, op: Op) -> None:
    """Lowers xlogy."""
    dtype = _result(op)[1]
    left, right = (operand(builder, op, item, dtype) for item in op.args[:2])
    builder.pointwise(op, xlogy(left, right))


def xlogy(left: Expr, right: Expr) -> Expr:
    """left * log(right); 0 where left is 0 (unless right is NaN)."""
    zero = const(0.0, left.dtype)
    product = apply("mul", left, apply("log", right))
    chosen = apply("where", apply("eq", left, zero, dtype="bool"), zero, product, dtype=left.dtype)
    return apply("where", apply("isnan", right, dtype="bool"), right, chosen, dtype=left.dtype)


@rule("logaddexp")
def _logaddexp(builder: Builder, op: Op) -> None:
    """Lowers logaddexp: log(exp(x) + exp(y)) without overflow. Of two equal infinities it is that infinity."""
    dtype = _result(op)[1]
    left, right = (operand(builder, op, item, dtype) for item in op.args[:2])
    below = apply("sub", apply("minimum", left, right), apply("maximum", left, right))  # never above 0
    total = apply("add", apply("maximum", left, right), apply("log1p", apply("exp", below)))
    same = apply("logical_and", apply("eq", left, right, dtype="bool"), apply("isinf", left, dtype="bool"))
    builder.pointwise(op, apply("where", same, left, total, dtype=dtype))


@rule("nan_to_num")
def _nan_to_num(builder: Builder, op: Op) -> None:
    """Lowers nan_to_num of float32 and float64: NaN by 0, infinities by the largest numbers, or by the given values.
    Raises Unsupported for other dtypes."""
    dtype = _result(op)[1]
    largest = {"float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308}.get(dtype)
    if largest is None or op.outputs[0].spec.dtype != dtype:
        raise Unsupported("nan_to_num of this dtype")
    value = _first(builder, op)
    given = [argument(op, index, name) for index, name in ((1, "nan"), (2, "posinf"), (3, "neginf"))]
    chosen = [default if item is None else item for item, default in zip(given, (0.0, largest, -largest), strict=True)]
    fill = [operand(builder, op, item, dtype) for item in chosen]
    clamped = value
    for bound, replacement in ((math.inf, fill[1]), (-math.inf, fill[2])):
        same = apply("eq", value, const(bound, dtype), dtype="bool")
        clamped = apply("where", same, replacement, clamped, dtype=dtype)
    builder.pointwise(op, apply("where", apply("isnan", value, dtype="bool"), fill[0], clamped, dtype=dtype))


@rule(
    "to", "_to_copy", "type_as", "clone", "contiguous", "detach", "alias", "lift_fresh_copy", "lift_fresh", "positive"
)
def _same(builder: Builder, op: Op) -> None:
    """Lowers copies and casts: they need no buffer; values are read from the source."""
    source = builder.tensor_at(op, 0, "self")
    builder.bind(op, Tensor(source.shape, source.expr))


@rule("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(builder: Builder, op: Op) -> None:
    """Lowers dropout outside training as the identity. Raises Unsupported in training."""
    if flag(op, 2, "train") and number(op, 1, "p") > 0:
        raise Unsupported("dropout that drops")
    builder.bind(op, builder.tensor_at(op, 0, "input"))


@rule("native_dropout")
def _native_dropout(builder: Builder, op: Op) -> None:
    """Lowers native_dropout outside training as the identity and a mask of ones. Raises Unsupported in training."""
    if argument(op, 2, "train") is not False and number(op, 1, "p") > 0:
        raise Unsupported("dropout that drops")
    source = builder.tensor_at(op, 0, "input")
    builder.bind(op, source)
    builder.bind(op, Tensor(source.shape, const(True, "bool")), 1)
