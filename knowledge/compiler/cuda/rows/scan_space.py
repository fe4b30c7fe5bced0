"""The iteration space of a scan: its rows, its elements and their places in memory, and which of them move as
vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from foundry.knowledge.compiler.cuda.dialect import CUDA_DIALECT, register_type
from foundry.knowledge.compiler.cuda.space import (
    LARGEST_INT,
    WIDEST_BYTES,
    Known,
    Space,
    collapse,
    decompose,
    element_load,
    indent,
    index_type,
    make_emitter,
    unroll,
    vector_type,
)
from foundry.knowledge.compiler.ir.kernels import Load, Plan, ScanKernel, View
from foundry.knowledge.compiler.ir.views import leaves
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import ITEM_BYTES

_COMBINE = {
    "sum": ("x + y", "(T)0"),
    "prod": ("x * y", "(T)1"),
    "max": ("math::maximum(x, y)", "lowest<T>()"),
    "min": ("math::minimum(x, y)", "highest<T>()"),
    "logsumexp": ("math::logaddexp(x, y)", "lowest<T>()"),
}


class ScanSpace:
    """A scan's rows and their elements: `space` has the merged row dimensions (`outer` of them), then the scanned one,
    whose index is `at`. Raises CannotLower for 2^30 rows or elements in a row."""

    def __init__(self, kernel: ScanKernel, plan: Plan) -> None:
        self.kernel, self.plan = kernel, plan
        self.type = register_type(kernel.dtype)
        self.length = kernel.shape[-1]
        self.rows = math.prod(kernel.shape[:-1])
        if max(self.rows, self.length) > LARGEST_INT // 2:
            raise CannotLower(f"scan {kernel.name}: too many rows or too long ones")
        self.found = leaves([kernel.value, *(store.value for store in kernel.stores)])
        views = [leaf.view for leaf in self.found] + [store.view for store in kernel.stores]
        sizes, strides = collapse(kernel.shape[:-1], [view.strides[:-1] for view in views])
        where = {v: View(v.offset, (*s, v.strides[-1])) for v, s in zip(views, strides, strict=True)}
        shape = (*sizes, self.length)
        names = (*(f"o{d}" for d in range(len(sizes))), "at")
        self.space = Space(shape, names, where, index_type(shape, where.values()))
        self.outer = len(sizes)

    @property
    def is_column(self) -> bool:
        """True if neighbouring rows are contiguous in memory, not the elements of a row."""
        view = self.space.where[self.kernel.stores[0].view]
        return self.outer > 0 and view.strides[-1] != 1 and view.strides[self.outer - 1] == 1

    def at(self, place: str) -> Space:
        """The space at position `place` (C text) of the scan, counted from the row's end if it runs backwards."""
        return self.space.with_inner(f"({self.length - 1} - ({place}))" if self.kernel.reverse else f"({place})")

    def widest(self) -> int:
        """Most elements of one access that every store allows."""
        buffers = [store.buffer for store in self.kernel.stores]
        buffers += [leaf.buffer for leaf in self.found if isinstance(leaf, Load) and self.space.stride_of(leaf.view)]
        limit = WIDEST_BYTES // max(ITEM_BYTES[self.plan.buffers[name].dtype] for name in buffers)
        stores = [store.view for store in self.kernel.stores]
        fitting = [v for v in (2, 4, 8) if v <= limit and all(self.space.is_aligned(view, v) for view in stores)]
        return max([1, *fitting])

    def holes(self) -> dict[str, object]:
        """Values for the holes that all templates of scans have."""
        combine, identity = _COMBINE[self.kernel.op]
        sizes, names = self.space.sizes[: self.outer], self.space.names[: self.outer]
        return {
            "TYPE": self.type,
            "INDEX": self.space.index,
            "LENGTH": self.length,
            "ROWS": self.rows,
            "OP": self.kernel.op,
            "COMBINE": combine,
            "IDENTITY": identity,
            "ROW": indent(decompose("row", sizes, names, self.space.index) if sizes else []),
        }


class ScanText:
    """C statements of a scan whose lanes hold `rounds` vectors: round `k` of a lane begins at position `first`."""

    def __init__(self, space: ScanSpace, vector: int, rounds: int) -> None:
        self.scan, self.vector, self.rounds = space, vector, rounds
        loads = [leaf for leaf in leaves([space.kernel.value]) if isinstance(leaf, Load)]
        moving = [leaf for leaf in loads if space.space.stride_of(leaf.view)]
        self.wide = [leaf for leaf in moving if vector == 1 or space.space.is_aligned(leaf.view, vector)]

    def holes(self) -> dict[str, object]:
        """Values for the holes of the templates that read vectors."""
        return {
            "VECTOR": self.vector,
            "ROUNDS": self.rounds,
            "DECLARE": indent(self._declared()),
            "LOAD": indent(self._loads(), 2),
            "VALUE": indent(self._values(), 3),
            "STORE": indent(self._stores(), 2),
        }

    def _vector_at(self) -> Space:
        """The space at the element where a vector begins in memory."""
        length = self.scan.length
        backwards = self.scan.kernel.reverse
        return self.scan.space.with_inner(f"({length - self.vector} - first)" if backwards else "first")

    @property
    def _lane(self) -> str:
        """C text of the position in a vector of the scan's element j."""
        return f"{self.vector - 1} - j" if self.scan.kernel.reverse else "j"

    def _present(self, body: Sequence[str]) -> list[str]:
        """`body` behind a test that round k is inside the row; [] if `body` is empty."""
        return [f"if (first < {self.scan.length}) {{", *body, "}"] if body else []

    def _declared(self) -> list[str]:
        """Declarations of arrays for the loaded vectors."""
        return [f"{vector_type(leaf.dtype, self.vector)} v{i}[{self.rounds}];" for i, leaf in enumerate(self.wide)]

    def _loads(self) -> list[str]:
        """Statements that load the vectors of round k."""
        place = self._vector_at()
        texts = [f"load_vec<{self.vector}>(b_{leaf.buffer} + {place.offset(leaf.view)})" for leaf in self.wide]
        return self._present([f"v{i}[k] = {text};" for i, text in enumerate(texts)])

    def _values(self) -> list[str]:
        """Statements that compute the scanned values of round k in x[k][j]."""
        known: Known = [
            (leaf, element_load(f"v{i}[k].at[{self._lane}]", leaf.dtype)) for i, leaf in enumerate(self.wide)
        ]
        body = make_emitter(self.scan.at("first + j"), known, {})
        body.lines.append(f"x[k][j] = ({self.scan.type})({body.value(self.scan.kernel.value)});")
        return self._present(unroll(self.vector, body.lines))

    def _stores(self) -> list[str]:
        """Statements that combine round k's partial results with `before`, the total ahead of it, and store them."""
        scan = self.scan
        body = make_emitter(scan.at("first + j"), [], {"acc": "acc"}, "s")
        within = "x[k][j]" if not scan.kernel.exclusive else "(j == 0 ? earlier[k] : x[k][j == 0 ? 0 : j - 1])"
        body.lines.append(f"const {scan.type} acc = combine(before, {within});")
        body.reserve(store.value for store in scan.kernel.stores)
        before: list[str] = []
        after: list[str] = []
        for i, store in enumerate(scan.kernel.stores):
            dtype = scan.plan.buffers[store.buffer].dtype
            if self.vector == 1:
                body.store(store, scan.at("first + j").offset, dtype)
                continue
            before.append(f"{vector_type(dtype, self.vector)} out{i};")
            body.lines.append(f"out{i}.at[{self._lane}] = {CUDA_DIALECT.store(body.value(store.value), dtype)};")
            place = f"b_{store.buffer} + {self._vector_at().offset(store.view)}"
            after.append(f"store_vec<{self.vector}>({place}, out{i});")
        return self._present([*before, *unroll(self.vector, body.lines), *after])
