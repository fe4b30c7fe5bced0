"""Lowers normalisations: mean and variance of a group of elements, then scale and shift."""

from __future__ import annotations

from foundry.knowledge.compiler.ir.kernels import Expr, Load, MapKernel, Store
from foundry.knowledge.compiler.rules.builder import (
    Builder,
    Tensor,
    Unsupported,
    apply,
    argument,
    cast,
    compute_dtype,
    const,
    flag,
    integer,
    integers,
    number,
    rule,
    scalar,
)
from foundry.knowledge.compiler.rules.reduce import Rows, is_read
from foundry.knowledge.opgraph import DType, Op

FOLD_BATCH_NORM = "fold-batchnorm"
_EPSILON: dict[DType, float] = {
    "float32": 1.1920928955078125e-07,
    "float64": 2.220446049250313e-16,
    "float16": 0.0009765625,
    "bfloat16": 0.0078125,
}


def _inverse_deviation(rows: Rows, variance: Expr, eps: float) -> Expr:
    """1 / sqrt(variance + eps), once per row."""
    return rows.let("rstd", apply("rsqrt", scalar("add", variance, eps)))


def _scale(value: Expr, weight: Expr | None, bias: Expr | None) -> Expr:
    """value * weight + bias, either of which may be missing."""
    if weight is not None:
        value = apply("mul", value, weight)
    return value if bias is None else apply("add", value, bias)


@rule("layer_norm", "native_layer_norm")
def _layer_norm(builder: Builder, op: Op) -> None:
    """Lowers layer_norm; mean and reciprocal deviation are stored if they are read."""
    source = builder.tensor_at(op, 0, "input")
    normalized = integers(op, 1, "normalized_shape") or []
    weight, bias = builder.optional(op, 2, "weight"), builder.optional(op, 3, "bias")
    eps = number(op, 4, "eps", 1e-5)
    rank = len(source.shape)
    rows = Rows(builder, op, source.shape, range(rank - len(normalized), rank))
    value = rows.see(source)
    mean, variance = rows.moments(value)
    rstd = _inverse_deviation(rows, variance, eps)
    normal = apply("mul", apply("sub", value, mean), rstd)
    affine = [None if item is None else rows.see(item, value.dtype) for item in (weight, bias)]
    rows.emit(_scale(normal, *affine))
    for output, result in ((1, mean), (2, rstd)):
        if len(op.outputs) > output and is_read(builder, op, output):
            rows.emit_row(result, output)
    rows.finish()


@rule("rms_norm", "_fused_rms_norm")
def _rms_norm(builder: Builder, op: Op) -> None:
    """Lowers rms_norm; the reciprocal root is stored if it is read."""
    source = builder.tensor_at(op, 0, "input")
    normalized = integers(op, 1, "normalized_shape") or []
    weight = builder.optional(op, 2, "weight")
    given = argument(op, 3, "eps")
    dtype = compute_dtype(source.dtype)
    eps = number(op, 3, "eps") if given is not None else _EPSILON[source.dtype]
    rank = len(source.shape)
    rows = Rows(builder, op, source.shape, range(rank - len(normalized), rank))
    value = rows.see(source)
    total = rows.reduce("squares", "sum", apply("mul", value, value))
    rstd = _inverse_deviation(rows, scalar("div", total, float(rows.count)), eps)
    rows.emit(_scale(apply("mul", value, rstd), None if weight is None else rows.see(weight, dtype), None))
    if len(op.outputs) > 1 and is_read(builder, op, 1):
        rows.emit_row(rstd, 1)
    rows.finish()


@rule("group_norm", "native_group_norm")
def _group_norm(builder: Builder, op: Op) -> None:
    """Lowers group_norm; mean and reciprocal deviation are stored if they are read."""
    if op.kind == "native_group_norm":
        weight, bias = builder.optional(op, 1, "weight"), builder.optional(op, 2, "bias")
        groups = integer(op, 6, "group")
        eps = number(op, 7, "eps")
    else:
        groups = integer(op, 1, "num_groups")
        eps = number(op, 4, "eps", 1e-5)
        weight, bias = builder.optional(op, 2, "weight"), builder.optional(op, 3, "bias")
    source = builder.tensor_at(op, 0, "input")
    batch, channels, *space = source.shape
    split = (batch, groups, channels // groups, *space)
    rows = Rows(builder, op, split, range(2, len(split)))
    value = rows.see(builder.reshape(source, split, op))
    mean, variance = rows.moments(value)
    rstd = _inverse_deviation(rows, variance, eps)
    normal = apply("mul", apply("sub", value, mean), rstd)
    column = (groups, channels // groups) + (1,) * len(space)
    affine = [
        None if item is None else rows.see(builder.reshape(item, column, op), value.dtype) for item in (weight, bias)
    ]
    rows.emit(_scale(normal, *affine))
    for output, result in ((1, mean), (2, rstd)):
        if len(op.outputs) > output and is_read(builder, op, output):
            rows.emit_row(result, output)
    rows.finish()


# ---------------------------------------------------------------- per channel


def _channel(builder: Builder, op: Op, tensor: Tensor, rank: int) -> Tensor:
    """A tensor with one element per channel, shaped to broadcast over (batch, channels, ...)."""
    return builder.reshape(tensor, (tensor.numel,) + (1,) * (rank - 2), op)


def _statistics(
    builder: Builder,
    op: Op,
    over: tuple[int, ...],
    running: tuple[Tensor | None, Tensor | None],
    momentum: float,
    eps: float,
    outputs: dict[str, int],
) -> None:
    """Normalises by the input's own mean and variance over the dimensions `over`. Updates running statistics if
    `outputs` names results for them ("mean", "rstd", "running_mean", "running_var")."""
    source = builder.tensor_at(op, 0, "input")
    rank = len(source.shape)
    weight, bias = builder.optional(op, 1, "weight"), builder.optional(op, 2, "bias")
    rows = Rows(builder, op, source.shape, over)
    value = rows.see(source)
    dtype = value.dtype
    mean, variance = rows.moments(value)
    rstd = _inverse_deviation(rows, variance, eps)
    normal = apply("mul", apply("sub", value, mean), rstd)
    affine = [None if item is None else rows.see(_channel(builder, op, item, rank), dtype) for item in (weight, bias)]
    rows.emit(_scale(normal, *affine))
    for name, result in (("mean", mean), ("rstd", rstd)):
        if name in outputs and is_read(builder, op, outputs[name]):
            rows.emit_row(result, outputs[name])
    unbiased = scalar("mul", variance, rows.count / max(rows.count - 1, 1))
    for name, old, new in (("running_mean", running[0], mean), ("running_var", running[1], unbiased)):
        if old is not None and name in outputs and is_read(builder, op, outputs[name]):
            kept = scalar("mul", cast(rows.per_row(old), dtype), 1.0 - momentum)
            rows.emit_row(apply("add", kept, scalar("mul", new, momentum)), outputs[name])
    rows.finish()


@rule("batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional")
def _batch_norm(builder: Builder, op: Op) -> None:
    """Lowers batch norms: by the running statistics in evaluation; in training by the batch's, which update the running
    ones."""
    source = builder.tensor_at(op, 0, "input")
    stateless = op.kind == "_native_batch_norm_legit" and op.target.endswith("no_stats")
    running = (None, None) if stateless else (builder.optional(op, 3, "rm"), builder.optional(op, 4, "rv"))
    shift = -2 if stateless else 0
    training = flag(op, 5 + shift, "training")
    momentum, eps = number(op, 6 + shift, "momentum"), number(op, 7 + shift, "eps")
    if not training:
        _batch_norm_by_statistics(builder, op, running, eps)
        if op.kind == "_native_batch_norm_legit_functional":
            for output, statistic in ((3, running[0]), (4, running[1])):
                if statistic is not None:
                    builder.bind(op, statistic, output)
        return
    outputs = {} if op.kind == "batch_norm" else {"mean": 1, "rstd": 2}
    if op.kind == "_native_batch_norm_legit_functional":
        outputs |= {"running_mean": 3, "running_var": 4}
    over = tuple(axis for axis in range(len(source.shape)) if axis != 1)
    _statistics(builder, op, over, running, momentum, eps=eps, outputs=outputs)


@rule("_native_batch_norm_legit_no_training", "cudnn_batch_norm")
def _batch_norm_inference(builder: Builder, op: Op) -> None:
    """Lowers batch norm operators that use running statistics only. Raises Unsupported for cuDNN's operator."""
    if op.kind == "cudnn_batch_norm":
        raise Unsupported("cudnn_batch_norm")
    running = (builder.optional(op, 3, "running_mean"), builder.optional(op, 4, "running_var"))
    _batch_norm_by_statistics(builder, op, running, number(op, 6, "eps"))


def _batch_norm_by_statistics(
    builder: Builder, op: Op, running: tuple[Tensor | None, Tensor | None], eps: float
) -> None:
    """Emits batch norm by running statistics: (x - mean) * scale + bias with one scale per channel.

    The rewrite FOLD_BATCH_NORM computes x * scale + shift: one rounding less, but with cancellation if the mean is much
    larger than the deviation. Raises Unsupported without running statistics.
    """
    mean, variance = running
    if mean is None or variance is None:
        raise Unsupported("batch norm without statistics")
    source = builder.tensor_at(op, 0, "input")
    shape = source.shape
    rank = len(source.shape)
    dtype = compute_dtype(source.dtype)
    weight, bias = builder.optional(op, 1, "weight"), builder.optional(op, 2, "bias")
    builder.applicable.append(FOLD_BATCH_NORM)
    fold = FOLD_BATCH_NORM in builder.rewrites
    scale: Expr = apply("rsqrt", scalar("add", cast(variance.expr, dtype), eps))
    if weight is not None:
        scale = apply("mul", cast(weight.expr, dtype), scale)
    exprs = {"scale": scale}
    if fold:
        start = const(0.0, dtype) if bias is None else cast(bias.expr, dtype)
        exprs["shift"] = apply("sub", start, apply("mul", cast(mean.expr, dtype), scale))
    channel = _per_channel(builder, op, variance.numel, exprs, dtype)

    def spread(tensor: Tensor) -> Expr:
        """A value a channel as an expression over the whole shape, in the type of arithmetic."""
        return cast(builder.expand(_channel(builder, op, tensor, rank), shape, op).expr, dtype)

    value = source.computed
    if fold:
        result = apply("add", apply("mul", value, spread(channel["scale"])), spread(channel["shift"]))
    else:
        result = apply("mul", apply("sub", value, spread(mean)), spread(channel["scale"]))
        result = result if bias is None else apply("add", result, spread(bias))
    builder.pointwise(op, result)


def _per_channel(builder: Builder, op: Op, channels: int, exprs: dict[str, Expr], dtype: DType) -> dict[str, Tensor]:
    """Small vectors of one element per channel, computed from the parameters by one map per call; by tag."""
    found: dict[str, Tensor] = {}
    stores = []
    for tag, expr in exprs.items():
        found[tag] = builder.buffer(f"{op.name}_{tag}", (channels,), dtype)
        load = found[tag].expr
        assert isinstance(load, Load)
        stores.append(Store(load.buffer, load.view, expr))
    builder.emit(MapKernel(f"k_{builder.identifier(op.name)}_channels", (channels,), tuple(stores), (op.name,)))
    return found


@rule("instance_norm")
def _instance_norm(builder: Builder, op: Op) -> None:
    """Lowers instance_norm. Raises Unsupported if it updates running statistics."""
    source = builder.tensor_at(op, 0, "input")
    running = (builder.optional(op, 3, "running_mean"), builder.optional(op, 4, "running_var"))
    use_input = flag(op, 5, "use_input_stats")
    momentum = number(op, 6, "momentum")
    eps = number(op, 7, "eps")
    if not use_input:
        _batch_norm_by_statistics(builder, op, running, eps)
        return
    if running[0] is not None:
        raise Unsupported("instance norm that tracks statistics")
    _statistics(builder, op, tuple(range(2, len(source.shape))), running, momentum, eps=eps, outputs={})


@rule("weight_norm_interface", "_weight_norm", "_weight_norm_interface")
def _weight_norm(builder: Builder, op: Op) -> None:
    """Lowers weight norm: v * (g / norm(v)) with one norm for each index of `dim`."""
    direction, gain = builder.tensor_at(op, 0, "v"), builder.tensor_at(op, 1, "g")
    dim = integer(op, 2, "dim", 0) % len(direction.shape)
    rows = Rows(builder, op, direction.shape, [axis for axis in range(len(direction.shape)) if axis != dim])
    value = rows.see(direction)
    norm = apply("sqrt", rows.reduce("acc", "sum", apply("mul", value, value)))
    rows.emit(apply("mul", value, apply("div", rows.see(gain), norm)))
    if len(op.outputs) > 1 and is_read(builder, op, 1):
        rows.emit_row(norm, 1)
    rows.finish()
