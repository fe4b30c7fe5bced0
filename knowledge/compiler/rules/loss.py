"""Lowers losses: a pointwise or per-row expression, then a sum or a mean over everything."""

from __future__ import annotations

from foundry.knowledge.compiler.ir.kernels import Expr, Gather, View
from foundry.knowledge.compiler.ir.views import NotAffine, at_gather
from foundry.knowledge.compiler.rules.builder import (
    Builder,
    Tensor,
    Unsupported,
    apply,
    argument,
    broadcast,
    cast,
    compute_dtype,
    const,
    integer,
    number,
    rule,
    scalar,
)
from foundry.knowledge.compiler.rules.pointwise import xlogy
from foundry.knowledge.compiler.rules.reduce import Rows, log_softmax, pair_rows
from foundry.knowledge.opgraph import Op, contiguous_strides

Shape = tuple[int, ...]
NONE, MEAN, SUM = 0, 1, 2


def reduced(builder: Builder, op: Op, shape: Shape, expr: Expr, reduction: int) -> None:
    """Binds `op` to `expr` over `shape`: unreduced, or its sum or mean over everything."""
    if reduction == NONE:
        builder.pointwise(op, expr)
        return
    rows = Rows(builder, op, shape, range(len(shape)))
    total = rows.reduce("total", "sum", expr)
    rows.emit_row(scalar("div", total, float(max(rows.count, 1))) if reduction == MEAN else total)
    rows.finish("total")


def _pair(builder: Builder, op: Op) -> tuple[Shape, Expr, Expr]:
    """The broadcast shape of the first two operands, and both as expressions in the dtype the result is computed in."""
    first, second = builder.tensor(op.args[0]), builder.tensor(op.args[1])
    shape = broadcast(first.shape, second.shape)
    dtype = compute_dtype(op.outputs[0].spec.dtype)
    left, right = (cast(builder.expand(item, shape, op).expr, dtype) for item in (first, second))
    return shape, left, right


def _weight(builder: Builder, op: Op, index: int, shape: Shape, like: Expr) -> Expr | None:
    """The optional weight, broadcast to `shape`, in the dtype of `like`; or None."""
    weight = builder.optional(op, index, "weight")
    return None if weight is None else cast(builder.expand(weight, shape, op).expr, like.dtype)


@rule("mse_loss", "l1_loss")
def _distance(builder: Builder, op: Op) -> None:
    """Lowers mse_loss and l1_loss."""
    shape, left, right = _pair(builder, op)
    difference = apply("sub", left, right)
    value = apply("mul", difference, difference) if op.kind == "mse_loss" else apply("abs", difference)
    reduced(builder, op, shape, value, integer(op, 2, "reduction", MEAN))


@rule("smooth_l1_loss", "huber_loss")
def _huber(builder: Builder, op: Op) -> None:
    """Lowers smooth_l1_loss and huber_loss: quadratic near zero, linear beyond; huber_loss is smooth_l1_loss times
    its width."""
    shape, left, right = _pair(builder, op)
    width = number(op, 3, "beta" if op.kind == "smooth_l1_loss" else "delta", 1.0)
    size = apply("abs", apply("sub", left, right))
    if width == 0:
        reduced(builder, op, shape, size, integer(op, 2, "reduction", MEAN))
        return
    near = apply("lt", size, const(width, size.dtype), dtype="bool")
    square = scalar("mul", apply("mul", size, size), 0.5)
    if op.kind == "smooth_l1_loss":
        inside, outside = scalar("div", square, width), scalar("sub", size, 0.5 * width)
    else:
        inside, outside = square, scalar("mul", scalar("sub", size, 0.5 * width), width)
    value = apply("where", near, inside, outside, dtype=size.dtype)
    reduced(builder, op, shape, value, integer(op, 2, "reduction", MEAN))


@rule("binary_cross_entropy")
def _binary_cross_entropy(builder: Builder, op: Op) -> None:
    """Lowers binary_cross_entropy: -(t log p + (1 - t) log(1 - p)), with logarithms clamped to at least -100."""
    shape, chance, target = _pair(builder, op)
    one = const(1.0, chance.dtype)
    positive = scalar("maximum", apply("log", chance), -100.0)
    negative = scalar("maximum", apply("log1p", apply("neg", chance)), -100.0)
    value = apply("sub", apply("mul", apply("sub", target, one), negative), apply("mul", target, positive))
    weight = _weight(builder, op, 2, shape, value)
    value = value if weight is None else apply("mul", value, weight)
    reduced(builder, op, shape, value, integer(op, 3, "reduction", MEAN))


@rule("binary_cross_entropy_with_logits")
def _binary_cross_entropy_with_logits(builder: Builder, op: Op) -> None:
    """Lowers binary_cross_entropy_with_logits, through log-sigmoid."""
    shape, logit, target = _pair(builder, op)
    dtype = logit.dtype
    one = const(1.0, dtype)
    log_sigmoid = apply("logsigmoid", logit)
    rest = apply("mul", apply("sub", one, target), logit)
    positive = builder.optional(op, 3, "pos_weight")
    if positive is None:
        value = apply("sub", rest, log_sigmoid)
    else:
        factor = cast(builder.expand(positive, shape, op).expr, dtype)
        log_weight = apply("add", apply("mul", apply("sub", factor, one), target), one)
        value = apply("sub", rest, apply("mul", log_weight, log_sigmoid))
    weight = _weight(builder, op, 2, shape, value)
    value = value if weight is None else apply("mul", value, weight)
    reduced(builder, op, shape, value, integer(op, 4, "reduction", MEAN))


@rule("kl_div")
def _kl_div(builder: Builder, op: Op) -> None:
    """Lowers kl_div: the Kullback-Leibler divergence, pointwise."""
    shape, value, target = _pair(builder, op)
    if argument(op, 3, "log_target", False):
        loss = apply("mul", apply("exp", target), apply("sub", target, value))
    else:
        loss = apply("sub", xlogy(target, target), apply("mul", target, value))
    reduced(builder, op, shape, loss, integer(op, 2, "reduction", MEAN))


@rule("hinge_embedding_loss")
def _hinge_embedding(builder: Builder, op: Op) -> None:
    """Lowers hinge_embedding_loss: x where the target is 1, max(0, margin - x) where it is -1; then the reduction."""
    shape, value, target = _pair(builder, op)
    dtype = value.dtype
    zero = const(0.0, dtype)
    margin = scalar("maximum", apply("sub", const(number(op, 2, "margin", 1.0), dtype), value), 0.0)
    far = apply("where", apply("ne", target, const(1.0, dtype), dtype="bool"), margin, zero, dtype=dtype)
    near = apply("where", apply("ne", target, const(-1.0, dtype), dtype="bool"), value, zero, dtype=dtype)
    reduced(builder, op, shape, apply("add", far, near), integer(op, 3, "reduction", MEAN))


@rule("margin_ranking_loss")
def _margin_ranking(builder: Builder, op: Op) -> None:
    """Lowers margin_ranking_loss: max(0, margin - target * (first - second)), then the reduction."""
    first, second, target = (builder.tensor(item) for item in op.args[:3])
    shape = broadcast(first.shape, second.shape, target.shape)
    dtype = compute_dtype(op.outputs[0].spec.dtype)
    left, right, sign = (cast(builder.expand(item, shape, op).expr, dtype) for item in (first, second, target))
    product = apply("mul", apply("neg", sign), apply("sub", left, right))
    value = scalar("maximum", scalar("add", product, number(op, 3, "margin", 0.0)), 0.0)
    reduced(builder, op, shape, value, integer(op, 4, "reduction", MEAN))


@rule("soft_margin_loss")
def _soft_margin(builder: Builder, op: Op) -> None:
    """Lowers soft_margin_loss: log(1 + exp(-target * value))."""
    shape, value, target = _pair(builder, op)
    loss = apply("log1p", apply("exp", apply("mul", apply("neg", target), value)))
    reduced(builder, op, shape, loss, integer(op, 2, "reduction", MEAN))


@rule("poisson_nll_loss")
def _poisson_nll(builder: Builder, op: Op) -> None:
    """Lowers poisson_nll_loss. Raises Unsupported for `full`."""
    if argument(op, 3, "full", False):
        raise Unsupported("the full Poisson loss")
    shape, value, target = _pair(builder, op)
    if argument(op, 2, "log_input", True):
        loss = apply("sub", apply("exp", value), apply("mul", target, value))
    else:
        loss = apply("sub", value, apply("mul", target, apply("log", scalar("add", value, number(op, 4, "eps")))))
    reduced(builder, op, shape, loss, integer(op, 5, "reduction", MEAN))


# ---------------------------------------------------------------- per row


def _then_reduce(builder: Builder, op: Op, rows: Rows, value: Expr, reduction: int) -> None:
    """Finishes a kernel with one value per row, and reduces those in a second, small kernel."""
    if reduction == NONE:
        rows.emit_row(value)
        rows.finish()
        return
    each = rows.temporary("each", value)
    rows.finish()
    reduced(builder, op, each.shape, each.expr, reduction)


@rule("triplet_margin_loss")
def _triplet_margin(builder: Builder, op: Op) -> None:
    """Lowers triplet_margin_loss for the Euclidean norm. Raises Unsupported for other norms."""
    anchor, positive, negative = (builder.tensor(item) for item in op.args[:3])
    shape = broadcast(anchor.shape, positive.shape, negative.shape)
    margin, power, eps = (
        number(op, 3, "margin", 1.0),
        number(op, 4, "p", 2.0),
        number(op, 5, "eps", 1e-6),
    )
    if power != 2:
        raise Unsupported("a triplet loss in another norm")
    rows = Rows(builder, op, shape, [-1])

    def distance(tag: str, left: Tensor, right: Tensor) -> Expr:
        """The Euclidean distance of two rows, with eps added to each difference."""
        difference = scalar("add", apply("sub", rows.see(left), rows.see(right)), eps)
        return apply("sqrt", rows.reduce(tag, "sum", apply("mul", difference, difference)))

    near, far = distance("near", anchor, positive), distance("far", anchor, negative)
    if argument(op, 6, "swap", False):
        far = apply("minimum", far, distance("swap", positive, negative))
    value = scalar("maximum", apply("sub", scalar("add", near, margin), far), 0.0)
    _then_reduce(builder, op, rows, value, integer(op, 7, "reduction", MEAN))


@rule("cosine_embedding_loss")
def _cosine_embedding(builder: Builder, op: Op) -> None:
    """Lowers cosine_embedding_loss. PyTorch adds 1e-12 under each root here instead of clamping the norms."""
    first, second, target = (builder.tensor(item) for item in op.args[:3])
    margin = number(op, 3, "margin", 0.0)
    rows = pair_rows(builder, op, first, second, -1)
    left, right = rows.see(first), rows.see(second)
    product = rows.reduce("dot", "sum", apply("mul", left, right))
    squares = [
        scalar("add", rows.reduce(tag, "sum", apply("mul", side, side)), 1e-12)
        for tag, side in (("first", left), ("second", right))
    ]
    similarity = apply("div", product, apply("sqrt", apply("mul", *squares)))
    dtype = similarity.dtype
    sign = rows.per_row(builder.expand(target, rows.outer, op))
    near = apply("sub", const(1.0, dtype), similarity)
    far = scalar("maximum", scalar("sub", similarity, margin), 0.0)
    zero = const(0.0, dtype)
    far = apply("where", apply("eq", sign, const(-1, sign.dtype), dtype="bool"), far, zero, dtype=dtype)
    value = apply("where", apply("eq", sign, const(1, sign.dtype), dtype="bool"), near, far, dtype=dtype)
    _then_reduce(builder, op, rows, value, integer(op, 4, "reduction", MEAN))


def _class_axis(shape: Shape) -> int:
    """The dimension of a loss's input that holds the classes."""
    return 0 if len(shape) == 1 else 1


def _pick_class(rows: Rows, value: Tensor, target: Expr) -> Expr:
    """value[class = target] of each row: a gather if the value is in memory. Raises Unsupported if the value is
    itself a gather that is not affine."""
    strides = contiguous_strides(rows.outer + rows.reduced)
    space = rows.outer + rows.reduced
    base = View(0, strides[: len(rows.outer)] + (0,) * len(rows.reduced))
    seen = rows.see(value)
    bound = rows.reduced[0]
    pick = Gather("", base, index=target, step=strides[-1], bound=bound, dtype=seen.dtype)
    try:
        return at_gather(seen, space, pick, space)
    except NotAffine:
        raise Unsupported("a class chosen from a computed gather") from None


def _class_losses(builder: Builder, op: Op, rows: Rows, target: Tensor, ignore: int) -> tuple[Expr, Expr]:
    """(index, counts): the target class of each row, made safe to index with, and a flag that is false for ignored
    rows."""
    own = rows.per_row(target)
    counts = apply("ne", own, const(ignore, own.dtype), dtype="bool")
    return apply("where", counts, own, const(0, own.dtype), dtype=own.dtype), counts


def _weight_of(builder: Builder, op: Op, weight: Tensor | None, target: Expr, rows: Rows) -> Expr | None:
    """The weight of each row's target class, or None."""
    if weight is None:
        return None
    _, load = builder.ensure_load(weight, op)
    view = View(load.view.offset, (0,) * (len(rows.outer) + len(rows.reduced)))
    return Gather(load.buffer, view, index=target, step=load.view.strides[0], bound=weight.numel, dtype=load.dtype)


def _finish_classes(
    builder: Builder, op: Op, rows: Rows, losses: list[Expr], weight: Expr | None, counts: Expr, reduction: int
) -> None:
    """Reduces the summed row losses to the result; a mean divides by the total weight of the rows that count."""
    dtype = losses[0].dtype
    zero = const(0.0, dtype)
    total = losses[0]
    for loss in losses[1:]:
        total = apply("add", total, loss)
    kept = apply("where", counts, total, zero, dtype=dtype)
    if reduction == NONE:
        rows.emit_row(kept)
        rows.finish()
        return
    each = rows.temporary("each", kept)
    share: Expr = const(1.0, dtype) if weight is None else cast(weight, dtype)
    shares = None
    if reduction == MEAN:
        shares = rows.temporary("share", apply("where", counts, share, zero, dtype=dtype))
    rows.finish()
    final = Rows(builder, op, each.shape, range(len(each.shape)))
    result = final.reduce("total", "sum", final.see(each))
    if shares is not None:
        result = apply("div", result, final.reduce("shares", "sum", final.see(shares)))
    final.emit_row(result)
    final.finish("total")


@rule("nll_loss_nd", "nll_loss", "nll_loss2d", "nll_loss_forward")
def _nll_loss(builder: Builder, op: Op) -> None:
    """Lowers the negative log likelihood losses: minus the target class's value, weighted, then the reduction."""
    value, target = builder.tensor_at(op, 0, "self"), builder.tensor_at(op, 1, "target")
    weight = builder.optional(op, 2, "weight")
    reduction, ignore = integer(op, 3, "reduction", MEAN), integer(op, 4, "ignore_index", -100)
    rows = Rows(builder, op, value.shape, [_class_axis(value.shape)])
    index, counts = _class_losses(builder, op, rows, target, ignore)
    each_weight = _weight_of(builder, op, weight, index, rows)
    loss = apply("neg", _pick_class(rows, value, index))
    if each_weight is not None:
        loss = apply("mul", loss, cast(each_weight, loss.dtype))
    _finish_classes(builder, op, rows, losses=[loss], weight=each_weight, counts=counts, reduction=reduction)


@rule("cross_entropy_loss")
def _cross_entropy(builder: Builder, op: Op) -> None:
    """Lowers cross_entropy_loss: log-softmax, target class, label smoothing and reduction. Raises Unsupported for label
    smoothing with class weights."""
    value, target = builder.tensor_at(op, 0, "self"), builder.tensor_at(op, 1, "target")
    weight = builder.optional(op, 2, "weight")
    reduction, ignore = integer(op, 3, "reduction", MEAN), integer(op, 4, "ignore_index", -100)
    smoothing = number(op, 5, "label_smoothing", 0.0)
    rows = Rows(builder, op, value.shape, [_class_axis(value.shape)])
    logits = rows.see(value)
    if target.shape == value.shape and target.dtype in ("float32", "float64", "float16", "bfloat16"):
        _cross_entropy_of_chances(
            builder, op, rows, value, target, weight=weight, smoothing=smoothing, reduction=reduction
        )
        return
    if smoothing and weight is not None:
        raise Unsupported("smoothed cross entropy with class weights")
    index, counts = _class_losses(builder, op, rows, target, ignore)
    each_weight = _weight_of(builder, op, weight, index, rows)
    largest = rows.reduce("max", "max", logits)
    total = rows.reduce("sum", "sum", apply("exp", apply("sub", logits, largest)))
    log_total = rows.let("log", apply("log", total))
    loss = apply("sub", log_total, apply("sub", _pick_class(rows, value, index), largest))
    if each_weight is not None:
        loss = apply("mul", loss, cast(each_weight, loss.dtype))
    losses = [loss]
    if smoothing:
        spread = rows.reduce("spread", "sum", apply("sub", apply("sub", logits, largest), log_total))
        losses = [
            scalar("mul", loss, 1.0 - smoothing),
            scalar("mul", apply("neg", spread), smoothing / rows.count),
        ]
    _finish_classes(builder, op, rows, losses, weight=each_weight, counts=counts, reduction=reduction)


def _cross_entropy_of_chances(
    builder: Builder,
    op: Op,
    rows: Rows,
    value: Tensor,
    target: Tensor,
    weight: Tensor | None,
    smoothing: float,
    reduction: int,
) -> None:
    """Emits cross entropy with targets given as probabilities; a mean divides by the number of rows."""
    logits = rows.see(value)
    log_chance = log_softmax(rows, logits)
    goal = rows.see(target)
    if smoothing:
        goal = scalar("add", scalar("mul", goal, 1.0 - smoothing), smoothing / rows.count)
    term = apply("mul", log_chance, cast(goal, log_chance.dtype))
    if weight is not None:
        axis = _class_axis(value.shape)
        column = builder.reshape(weight, (weight.numel,) + (1,) * (len(value.shape) - 1 - axis), op)
        term = apply("mul", term, cast(rows.see(column), term.dtype))
    loss = apply("neg", rows.reduce("loss", "sum", term))
    _then_reduce(builder, op, rows, loss, reduction)
