"""Lowers products of rows with matrices that an index chooses for each row, as experts are: a grouped product over the
rows sorted by their index, instead of a copy of a matrix for each row."""

from __future__ import annotations

from foundry.knowledge.compiler.ir.kernels import Expr, GroupedKernel, Load, Named, SortKernel, Store
from foundry.knowledge.compiler.rules.builder import Builder, Tensor, apply, cast, compute_dtype, const, scalar
from foundry.knowledge.opgraph import Argument, Op, Ref

# Operators between the choice and the product that change no element.
_SAME = frozenset({"clone", "contiguous", "detach", "alias"})


def grouped_product(builder: Builder, op: Op, a: Tensor, b: Argument) -> bool:
    """Binds `op` to a (items, 1, k) times a table's matrices chosen by an index. False, and nothing bound, for another
    product."""
    found = _choice(builder, b) if builder.forms.has_groups else None
    if found is None or len(a.shape) != 3 or a.shape[1] != 1:
        return False
    table, index, is_turned = found
    if is_turned:
        table = builder.permute(table, (0, 2, 1), op)
    groups, k, n = table.shape
    items = a.shape[0]
    if index.shape != (items,) or op.outputs[0].spec.shape != (items, 1, n):
        return False
    dtype = compute_dtype(op.outputs[0].spec.dtype)
    starts, order = sorted_items(builder, op, wrapped(index.expr, groups), items, groups)
    value = op.outputs[0]
    target = builder.buffer(value.name, (items, n), value.spec.dtype)
    assert isinstance(target.expr, Load)
    builder.emit(
        GroupedKernel(
            name=f"k_{target.expr.buffer}",
            items=items,
            groups=groups,
            n=n,
            k=k,
            a=cast(builder.reshape(a, (items, k), op).expr, dtype),
            b=cast(table.expr, dtype),
            starts=starts,
            order=order,
            stores=(Store(target.expr.buffer, target.expr.view, cast(Named("acc", dtype), value.spec.dtype)),),
            dtype=dtype,
            ops=(op.name,),
        )
    )
    builder.bind(op, builder.reshape(target, (items, 1, n), op))
    return True


def _choice(builder: Builder, item: Argument) -> tuple[Tensor, Tensor, bool] | None:
    """(table, index, transposed after the choice) of an operand that is table[index]."""
    is_turned = False
    while isinstance(item, Ref) and (maker := builder.graph.producers.get(item.ref)) is not None:
        if maker.kind in ("transpose", "permute", "mT") and _swaps_last(maker):
            is_turned = not is_turned
        elif maker.kind == "index":
            return _table(builder, maker, is_turned)
        elif maker.kind == "index_select" and maker.args[1] == 0:
            maker = Op(maker.target, [maker.args[0], [maker.args[2]]], {}, maker.outputs)
            return _table(builder, maker, is_turned)
        elif maker.kind not in _SAME:
            return None
        item = maker.args[0]
    return None


def _swaps_last(op: Op) -> bool:
    """True for an operator that swaps the last two of three dimensions."""
    rank = len(op.outputs[0].spec.shape)
    if op.kind == "permute":
        return rank == 3 and op.args[1] in ([0, 2, 1], [0, -1, -2])
    if op.kind == "mT":
        return rank == 3
    return rank == 3 and {int(dim) % 3 for dim in op.args[1:3] if isinstance(dim, int)} == {1, 2}


def _table(builder: Builder, op: Op, is_turned: bool) -> tuple[Tensor, Tensor, bool] | None:
    """(table of matrices, index, `is_turned`); None unless exactly one index chooses rows of a three-dimensional
    table."""
    given = op.args[1]
    if not isinstance(given, list) or len(given) != 1 or given[0] is None:
        return None
    table, index = builder.tensor(op.args[0]), builder.tensor(given[0])
    if len(table.shape) != 3 or index.dtype in ("bool", "uint8"):
        return None
    return table, index, is_turned


# ---------------------------------------------------------------- items in the order of their groups


def wrapped(index: Expr, size: int) -> Expr:
    """An index that may count from the end, as a non-negative int64."""
    wide = cast(index, "int64")
    return apply("where", scalar_bool("lt", wide, 0), scalar("add", wide, size), wide, dtype="int64")


def scalar_bool(op: str, expr: Expr, value: float) -> Expr:
    """A comparison of an expression with a number, as a bool."""
    return apply(op, expr, const(value, expr.dtype), dtype="bool")


def sorted_items(builder: Builder, op: Op, key: Expr, count: int, segments: int) -> tuple[str, str]:
    """The names of the buffers of the sorted items (starts, order): those of an earlier sort by the same key if
    there is one."""
    for step in builder.steps:
        if isinstance(step, SortKernel) and (step.items, step.segments, step.key) == (count, segments, key):
            return step.starts, step.order
    starts = _counts(builder, f"{op.name}_starts", segments + 1)
    order = _counts(builder, f"{op.name}_order", count)
    builder.emit(
        SortKernel(f"k_{order}", items=count, segments=segments, key=key, starts=starts, order=order, ops=(op.name,))
    )
    return starts, order


def _counts(builder: Builder, name: str, count: int) -> str:
    """The name of a new int32 buffer."""
    load = builder.buffer(name, (count,), "int32").expr
    assert isinstance(load, Load)
    return load.buffer
