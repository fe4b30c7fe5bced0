"""Index spaces of an attention kernel in CUDA: queries, keys, values, mask and result over one collapsed batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from foundry.knowledge.compiler.cuda.space import (
    Space,
    body_leaves,
    buffers_of,
    collapse,
    decompose,
    index_type,
    list_parameters,
    make_emitter,
)
from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.kernels import AttentionKernel, Expr, Plan, View
from foundry.knowledge.compiler.ir.views import leaves


@dataclass(frozen=True)
class AttentionSpace:
    """An attention's index spaces. `spaces` has "q", "k", "v", "mask" and "out": the batch's dimensions, then two of
    row, column and d (the element of a head)."""

    kernel: AttentionKernel
    plan: Plan
    batch_sizes: tuple[int, ...]
    batch_names: tuple[str, ...]
    spaces: dict[str, Space]
    index: str

    @property
    def batch(self) -> int:
        """Number of batch points."""
        return math.prod(self.kernel.batch)

    def leaf(self, which: str, expr: Expr) -> str:
        """C text of the element of an operand ("q", "k", "v", "mask") at the current point."""
        return make_emitter(self.spaces[which], [], {}).value(expr)

    def address(self, which: str) -> str:
        """C text of the address of the element of "q", "k" or "v" at the current point."""
        load = {"q": self.kernel.q, "k": self.kernel.k, "v": self.kernel.v}[which]
        return f"b_{load.buffer} + ({self.spaces[which].offset(load.view)})"

    def place(self, flat: str) -> list[str]:
        """C statements that define the batch's indices from `flat`, its flat index; [] without a batch."""
        return decompose(flat, self.batch_sizes, self.batch_names, self.index) if self.batch_sizes else []

    def store(self, result: str) -> list[str]:
        """C statements that store `result` at (row, d)."""
        body = make_emitter(self.spaces["out"], [], {"acc": result}, "s")
        body.store_all(self.kernel.stores, self.spaces["out"].offset, self.plan.buffers)
        return body.lines

    def signature(self, operands: Sequence[Expr], *, stores: bool = True) -> tuple[str, list[str]]:
        """(C parameter list, names of the buffers) of a kernel that reads the operands and, if `stores`, makes the
        stores."""
        stored = self.kernel.stores if stores else ()
        return list_parameters(self.plan, *buffers_of([*leaves(operands), *body_leaves(stored)], stored))


def operands_of(kernel: AttentionKernel) -> Sequence[Expr]:
    """The expressions that an attention reads: queries, keys, values, and the mask if there is one."""
    return [kernel.q, kernel.k, kernel.v, *masks_of(kernel)]


def masks_of(kernel: AttentionKernel) -> Sequence[Expr]:
    """The mask in a list; [] without one."""
    return [kernel.mask] if kernel.mask is not None else []


FEW_ROWS = 16  # most rows of one query head that is joined with others
MANY_ROWS = 128  # most rows of all joined heads


def join_heads(kernel: AttentionKernel) -> AttentionKernel:
    """The kernel with query heads that share keys and values joined to one head, so that these are read once.

    Unchanged if it is causal, has too many rows, or if keys, values or the rows' strides differ between heads."""
    if not kernel.batch or kernel.causal or kernel.rows > FEW_ROWS or kernel.rows * kernel.batch[-1] > MANY_ROWS:
        return kernel
    at = len(kernel.batch) - 1
    if kernel.batch[at] == 1 or kernel.k.view.strides[at] or kernel.v.view.strides[at]:
        return kernel
    over_rows = [kernel.q.view, *(leaf.view for leaf in leaves(masks_of(kernel))), *views.stored_views(kernel.stores)]
    steps = [(view.strides[at], view.strides[at + 1]) for view in over_rows]
    if kernel.rows > 1 and any(head != kernel.rows * row for head, row in steps):
        return kernel

    def joined(view: View) -> View:
        """The view of an operand with rows: heads and rows become one dimension."""
        step = view.strides[at] if kernel.rows == 1 else view.strides[at + 1]
        return View(view.offset, (*view.strides[:at], step, *view.strides[at + 2 :]))

    def shared(view: View) -> View:
        """The view of an operand that the heads share, without the dimension of heads."""
        return View(view.offset, (*view.strides[:at], *view.strides[at + 1 :]))

    return replace(
        kernel,
        batch=kernel.batch[:at],
        rows=kernel.rows * kernel.batch[at],
        q=replace(kernel.q, view=joined(kernel.q.view)),
        k=replace(kernel.k, view=shared(kernel.k.view)),
        v=replace(kernel.v, view=shared(kernel.v.view)),
        mask=None if kernel.mask is None else views.map_views(kernel.mask, joined),
        stores=tuple(views.map_store(store, joined) for store in kernel.stores),
    )


def make_attention_space(kernel: AttentionKernel, plan: Plan) -> AttentionSpace:
    """The index spaces of a kernel, with its batch dimensions merged where all operands allow it."""
    groups = {
        "q": [kernel.q.view],
        "k": [kernel.k.view],
        "v": [kernel.v.view],
        "mask": [leaf.view for leaf in leaves(masks_of(kernel))],
        "out": [leaf.view for leaf in body_leaves(kernel.stores)] + [store.view for store in kernel.stores],
    }
    extents = {
        "q": ((kernel.rows, kernel.head), ("row", "d")),
        "k": ((kernel.columns, kernel.head), ("column", "d")),
        "v": ((kernel.columns, kernel.value_head), ("column", "d")),
        "mask": ((kernel.rows, kernel.columns), ("row", "column")),
        "out": ((kernel.rows, kernel.value_head), ("row", "d")),
    }
    seen = [view for group in groups.values() for view in group]
    count = len(kernel.batch)
    batch_sizes, strides = collapse(kernel.batch, [view.strides[:count] for view in seen])
    batch_names = tuple(f"g{d}" for d in range(len(batch_sizes)))
    moved = [View(v.offset, (*s, *v.strides[count:])) for v, s in zip(seen, strides, strict=True)]
    spaces: dict[str, Space] = {}
    at = 0
    for name, group in groups.items():
        sizes, names = extents[name]
        where = dict(zip(group, moved[at : at + len(group)], strict=True))
        at += len(group)
        shape = (*batch_sizes, *sizes)
        spaces[name] = Space(shape, (*batch_names, *names), where, index_type(shape, where.values()))
    index = "long long" if any(space.index == "long long" for space in spaces.values()) else "int"
    return AttentionSpace(kernel, plan, batch_sizes, batch_names=batch_names, spaces=spaces, index=index)
