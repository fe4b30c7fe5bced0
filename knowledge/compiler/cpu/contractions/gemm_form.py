"""The form in which the CPU prints a product: batches merged into rows, stores contiguous along columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import transposed
from foundry.knowledge.compiler.ir.kernels import Apply, Expr, Gather, GemmKernel, Load, Store, View
from foundry.knowledge.compiler.ir.views import leaves
from foundry.knowledge.opgraph import DType

SKINNY_ROWS = 8  # rows of A; for so few reading B once in place competes with packing it


@dataclass(frozen=True)
class Operand:
    """The way one operand is read. `pointer` is its load if the micro-kernel can read memory without a conversion."""

    expr: Expr
    along_column: bool  # True if its memory is contiguous along the last index
    pointer: Load | None

    @property
    def is_of_bfloat16(self) -> bool:
        """True if the lower halves of its float32 values are zero."""
        return is_of_bfloat16(self.expr)


def _innermost_of_m(kernel: GemmKernel) -> int:
    """The axis of the store space that is m, or m's innermost dimension."""
    return len(kernel.batch) + len(kernel.m_shape) - 1


def _merge_batch(kernel: GemmKernel) -> GemmKernel:
    """The kernel with innermost batch dimensions merged into the rows, as long as B does not vary along them.

    All views must allow it. Stores that see the rows as several dimensions see one more.
    """
    while kernel.batch:
        last = len(kernel.batch) - 1
        seen = [leaf.view for leaf in leaves([kernel.a])]
        seen += [] if kernel.m_sizes else views.stored_views(kernel.stores)
        varies = any(leaf.view.strides[last] for leaf in leaves([kernel.b]))
        if varies or any(view.strides[last] != view.strides[last + 1] * kernel.m for view in seen):
            return kernel

        def drop(view: View, last: int = last) -> View:
            """The view without the merged batch dimension."""
            return View(view.offset, view.strides[:last] + view.strides[last + 1 :])

        size = kernel.batch[-1]
        kernel = replace(
            kernel,
            batch=kernel.batch[:-1],
            m=kernel.m * size,
            a=views.map_views(kernel.a, drop),
            b=views.map_views(kernel.b, drop),
            stores=kernel.stores if kernel.m_sizes else tuple(views.map_store(store, drop) for store in kernel.stores),
            m_sizes=(size, *kernel.m_sizes) if kernel.m_sizes else (),
        )
    return kernel


def _column_stride(store: Store, axis: int, size: int) -> int:
    """The store's stride along `axis`; 1 if that has a single element."""
    return store.view.strides[axis] if size > 1 else 1


def to_canonical(kernel: GemmKernel) -> GemmKernel:
    """The kernel in the form that is printed: batch merged into the rows if B allows it, transposed if that helps.

    It helps if stores become contiguous along n, or if few columns of a tall product become few rows of a wide one."""
    kernel = _merge_batch(kernel)
    store = kernel.stores[0]
    along_n = _column_stride(store, -1, kernel.n_shape[-1]) == 1
    along_m = _column_stride(store, _innermost_of_m(kernel), kernel.m_shape[-1]) == 1
    few_columns = kernel.n <= SKINNY_ROWS < kernel.m
    if few_columns or (along_m and not along_n and kernel.m > SKINNY_ROWS):
        return _merge_batch(transposed(kernel))
    return kernel


def choose_direction(expr: Expr, column_default: bool, float_type: DType) -> Operand:
    """The operand with its direction: that in which most loads are contiguous, `column_default` if equally many."""
    reads = [leaf for leaf in leaves([expr]) if isinstance(leaf, Load)]
    columns = sum(load.view.strides[-1] == 1 for load in reads)
    rows = sum(load.view.strides[-2] == 1 for load in reads)
    along_column = columns > rows if columns != rows else column_default
    return Operand(expr, along_column, expr if isinstance(expr, Load) and expr.dtype == float_type else None)


def is_of_bfloat16(expr: Expr) -> bool:
    """True if a bfloat16 holds every value of an expression exactly."""
    while isinstance(expr, Apply) and expr.op == "cast" and expr.dtype == "float32":
        (expr,) = expr.args
    if isinstance(expr, Gather):
        return expr.dtype == "bfloat16" and not expr.fill
    return expr.dtype == "bfloat16" and (isinstance(expr, Load) or (isinstance(expr, Apply) and expr.op == "cast"))
