"""Scans in CUDA: one block a row with a carry from tile to tile, or one thread a row where rows lie side by side.

The text of the row form is `scan.cu`; `_COLUMN` is the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from foundry.knowledge.candidate import Choice
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.library.cuda import launches
from foundry.knowledge.library.cuda.dialect import CUDA_DIALECT, register
from foundry.knowledge.library.cuda.launches import Launch
from foundry.knowledge.library.cuda.space import (
    LARGEST_INT,
    Known,
    Space,
    buffers_of,
    collapse,
    decompose,
    element_load,
    emitter,
    identifier,
    indent,
    index_type,
    leaves,
    load_plan,
    number,
    parameters,
    tunable,
    vector_type,
)
from foundry.knowledge.library.file.assemble import fill
from foundry.knowledge.library.file.texts import read_library_text
from foundry.knowledge.library.ir.kernels import Load, Plan, PrintedKernel, ScanKernel, Tunable, View
from foundry.knowledge.opgraph import ITEM_BYTES

THREADS = (32, 64, 128, 256, 512, 1024)
COLUMN_THREADS = (32, 64, 128, 256)
ITEMS = (1, 2, 4, 8)

_COLUMN = """\
// Running @OP@ down columns that lie side by side: one thread a column, neighbours read together.
extern "C" __global__ void __launch_bounds__(@THREADS@) @NAME@(@PARAMETERS@) {
    typedef @TYPE@ T;
    const auto combine = [](T x, T y) { return @COMBINE@; };
    const int row = (int)(blockIdx.x * @THREADS@ + threadIdx.x);
    if (row >= @ROWS@) return;
@ROW@
    T running = @IDENTITY@;
#pragma unroll 8
    for (@INDEX@ first = 0; first < @LENGTH@; ++first) {
        constexpr int j = 0;
@STEP@
    }
}
"""

_COMBINE = {
    "sum": ("x + y", "(T)0"),
    "prod": ("x * y", "(T)1"),
    "max": ("math::maximum(x, y)", "lowest<T>()"),
    "min": ("math::minimum(x, y)", "highest<T>()"),
    "logsumexp": ("math::logaddexp(x, y)", "lowest<T>()"),
}


class _Scan:
    def __init__(self, kernel: ScanKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> None:
        self.kernel, self.plan = kernel, plan
        self.type = register(kernel.dtype)
        self.length = kernel.shape[-1]
        self.rows = math.prod(kernel.shape[:-1])
        if max(self.rows, self.length) > LARGEST_INT // 2:
            raise CannotLower(f"scan {kernel.name}: too many rows or too long ones")
        self.found = leaves([kernel.value, *(store.value for store in kernel.stores)])
        self.space, self.outer = self._space()
        self.column = self._is_column()
        self._choose(device, choices)

    def _space(self) -> tuple[Space, int]:
        views = [leaf.view for leaf in self.found] + [store.view for store in self.kernel.stores]
        sizes, strides = collapse(self.kernel.shape[:-1], [view.strides[:-1] for view in views])
        where = {v: View(v.offset, (*s, v.strides[-1])) for v, s in zip(views, strides, strict=True)}
        shape = (*sizes, self.length)
        names = (*(f"o{d}" for d in range(len(sizes))), "at")
        return Space(shape, names, where, index_type(shape, where.values())), len(sizes)

    def _is_column(self) -> bool:
        view = self.space.where[self.kernel.stores[0].view]
        return self.outer > 0 and view.strides[-1] != 1 and view.strides[self.outer - 1] == 1

    def _choose(self, device: Device, choices: dict[str, Choice]) -> None:
        if self.column:
            self.items, self.vector = 1, 1
            default = 64 if self.rows < device.cores * 256 else 128
            self.threads = number(choices, "threads", COLUMN_THREADS, default)
            self.tunables: tuple[Tunable, ...] = (
                tunable("threads", COLUMN_THREADS, default, "parallel", "columns of a block"),
            )
            return
        self.items = number(choices, "items", ITEMS, 4)
        widest = 16 // min(ITEM_BYTES[leaf.dtype] for leaf in self.found if isinstance(leaf, Load))
        stores = [store.view for store in self.kernel.stores]
        fits = not self.kernel.reverse and self.items <= max(widest, 4)
        self.vector = self.items if fits and all(self.space.aligned(view, self.items) for view in stores) else 1
        wanted = math.ceil(self.length / self.items)
        default = min([size for size in THREADS if size >= min(wanted, 256)], default=256)
        self.threads = number(choices, "threads", THREADS, default)
        self.tunables = (
            tunable("threads", THREADS, default, "parallel", "threads of a block, which walks one row"),
            tunable("items", ITEMS, 4, "vector", "neighbours one thread scans by itself"),
        )

    def _space_at(self, at: str) -> Space:
        """The space at position `at` of the scan, counted from its other end when it runs backwards."""
        return self.space.with_inner(f"({self.length - 1} - ({at}))" if self.kernel.reverse else f"({at})")

    def _element(self) -> str:
        return "first" if self.items == 1 else "first + j"

    def _guard(self, body: Sequence[str]) -> list[str]:
        if self.length % self.items == 0:
            inside = list(body)
        else:
            inside = [f"if (first + j < {self.length}) {{", *body, "}"]
        return ["#pragma unroll", f"for (int j = 0; j < {self.items}; ++j) {{", *inside, "}"]

    def _load(self) -> list[str]:
        known: Known = []
        lines: list[str] = []
        if self.vector > 1:
            start = self.space.with_inner("first")
            for i, leaf in enumerate(load_plan(self.space, leaves([self.kernel.value]), self.vector).vectors):
                source = f"load_vec<{self.vector}>(b_{leaf.buffer} + {start.offset(leaf.view)})"
                lines.append(f"const {vector_type(leaf.dtype, self.vector)} v{i} = {source};")
                known.append((leaf, element_load(f"v{i}.at[j]", leaf.dtype)))
        body = emitter(self._space_at(self._element()), known, {})
        body.lines.append(f"x[j] = ({self.type})({body.value(self.kernel.value)});")
        return [*lines, *self._guard(body.lines)]

    def _stores(self, accumulated: str) -> list[str]:
        body = emitter(self._space_at(self._element()), [], {"acc": "acc"}, "s")
        body.lines.append(f"const {self.type} acc = {accumulated};")
        body.reserve(store.value for store in self.kernel.stores)
        before: list[str] = []
        after: list[str] = []
        start = self.space.with_inner("first")
        for i, store in enumerate(self.kernel.stores):
            dtype = self.plan.buffers[store.buffer].dtype
            if self.vector > 1:
                before.append(f"{vector_type(dtype, self.vector)} out{i};")
                body.lines.append(f"out{i}.at[j] = {CUDA_DIALECT.store(body.value(store.value), dtype)};")
                after.append(f"store_vec<{self.vector}>(b_{store.buffer} + {start.offset(store.view)}, out{i});")
            else:
                body.store(store, self._space_at(self._element()).offset, dtype)
        if self.column:
            return body.lines
        return [*before, *self._guard(body.lines), *after]

    def _column_step(self) -> list[str]:
        body = emitter(self._space_at("first"), [], {})
        next_value = f"const T next = combine(running, ({self.type})({body.value(self.kernel.value)}));"
        accumulated = "running" if self.kernel.exclusive else "next"
        return [*body.lines, next_value, *self._stores(accumulated), "running = next;"]

    def print(self) -> PrintedKernel:
        kernel = self.kernel
        name = launches.KERNEL_PREFIX + identifier(kernel.name)
        reads, writes = buffers_of(self.found, kernel.stores)
        signature, arguments = parameters(self.plan, reads, writes)
        combine, identity = _COMBINE[kernel.op]
        sizes, names = self.space.sizes[: self.outer], self.space.names[: self.outer]
        values: dict[str, object] = {
            "NAME": name,
            "PARAMETERS": signature,
            "TYPE": self.type,
            "INDEX": self.space.index,
            "THREADS": self.threads,
            "LENGTH": self.length,
            "OP": kernel.op,
            "COMBINE": combine,
            "IDENTITY": identity,
            "ROW": indent(decompose("row", sizes, names, self.space.index) if sizes else []),
        }
        if self.column:
            values |= {"ROWS": self.rows, "STEP": indent(self._column_step(), 2)}
            blocks = math.ceil(self.rows / self.threads)
            template = _COLUMN
        else:
            accumulated = "combine(before, x[j])"
            if kernel.exclusive:
                accumulated = "j == 0 ? before : combine(before, x[j == 0 ? 0 : j - 1])"
            values["ITEMS"] = self.items
            values |= {"LOAD": indent(self._load(), 3), "STORE": indent(self._stores(accumulated), 3)}
            blocks = self.rows
            template = read_library_text("cuda/rows/scan.cu")
        source = fill(template, {key: str(value) for key, value in values.items()})
        launch = Launch(name, (blocks, 1, 1), (self.threads, 1, 1), tuple(arguments))
        chosen: dict[str, Choice] = (
            {"threads": self.threads} if self.column else {"threads": self.threads, "items": self.items}
        )
        return PrintedKernel(
            functions=source,
            call=launches.encode([launch]),
            template="scan",
            choices=chosen,
            tunables=self.tunables,
            d_mem=1 if self.column or self.vector > 1 else 0,
            d_algo=1,
            d_sync=0 if self.column else 2,
        )


def print_scan(kernel: ScanKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """CUDA of a ScanKernel: a block scans one row, or each thread a column if rows lie across memory.

    `choices` may hold "threads" (of a block: 32 to 1024, for columns 32 to 256) and "items" (neighbouring elements that
    one thread scans by itself: 1, 2, 4, 8). A value that is not legal for this kernel gives way to the default.
    """
    """Raises CannotLower for more than 2^30 rows or elements in a row."""
    return _Scan(kernel, plan, device, choices).print()
