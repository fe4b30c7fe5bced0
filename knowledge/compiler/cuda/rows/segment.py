"""Sums and other reductions of segments in CUDA. A team of threads reads each segment's items in order; blocks share a
segment where segments are few and long. The order of additions never depends on which thread is first."""

from __future__ import annotations

import math

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda import launches
from foundry.knowledge.compiler.cuda.dialect import register_type
from foundry.knowledge.compiler.cuda.launches import Launch, symbol_of
from foundry.knowledge.compiler.cuda.printed import print_launches
from foundry.knowledge.compiler.cuda.put import print_put
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
    signature_of,
    unroll,
    vector_stores,
    vector_type,
)
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.kernels import Load, Plan, PrintedKernel, SegmentKernel, View
from foundry.knowledge.compiler.ir.views import leaves
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import ITEM_BYTES

LANES = (1, 2, 4, 8, 16, 32, 64, 128)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PARTS = (1, 2, 4, 8, 16, 32, 64)
_THREADS = 256
_ITEMS_OF_A_ROW = 4  # items that a thread needs to keep its loads in flight
_ITEMS_OF_A_PART = 1024  # fewest items of a segment that are worth a block

_COMBINE = {
    "sum": ("x + y", "Sum<T>"),
    "prod": ("x * y", "Prod<T>"),
    "max": ("math::maximum(x, y)", "Extreme<T, true>"),
    "min": ("math::minimum(x, y)", "Extreme<T, false>"),
    "last": ("y", "Last<T>"),
}


def print_segments(kernel: SegmentKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """CUDA of a SegmentKernel.

    `choices` may hold:
    - "vector": neighbouring elements of an item that a thread takes
    - "lanes": threads side by side on an item
    - "rows": items of a segment that are read side by side
    - "parts": blocks that share a segment
    A value that is not legal for this kernel gives way to the default.

    Raises CannotLower for 2^30 segments, items, or elements of one."""
    if kernel.in_place:
        return print_put(kernel, plan, device, choices)
    return _Segments(kernel, plan, device, choices).print()


class _Segments:
    """Prints a reduction of segments by teams of `lanes` times `rows` threads. A task is `lanes` vectors of one
    segment; an item has `turns` of them."""

    def __init__(self, kernel: SegmentKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> None:
        self.kernel, self.plan = kernel, plan
        self.segments, inner = kernel.shape[0], kernel.shape[1:]
        if max(self.segments, kernel.items, math.prod(inner)) > LARGEST_INT // 2:
            raise CannotLower(f"segments {kernel.name}: too many segments or items, or too large ones")
        self.found = leaves([kernel.value, *(store.value for store in kernel.stores)])
        views = list(dict.fromkeys([leaf.view for leaf in self.found] + [store.view for store in kernel.stores]))
        sizes, strides = collapse(inner, [view.strides[1:] for view in views])
        where = {v: View(v.offset, (v.strides[0], *s)) for v, s in zip(views, strides, strict=True)}
        self.names = tuple(f"c{d}" for d in range(len(sizes)))
        longest = (max(self.segments, kernel.items), *sizes)
        index = index_type(longest, where.values())
        self.items = Space((kernel.items, *sizes), ("item", *self.names), where, index)
        self.places = Space((self.segments, *sizes), ("segment", *self.names), where, index)
        self.tuning = Tuning(choices, declares_fixed=True)
        self._choose(device)

    def _choose(self, device: Device) -> None:
        """Chooses vector, lanes, rows and parts and declares them; sets the number of tasks."""
        kernel, inner = self.kernel, math.prod(self.kernel.shape[1:])
        vectors, tuning = self._legal_vectors(), self.tuning
        meaning = "elements of an item that a thread reads at once"
        self.vector = tuning.number("vector", vectors, vectors[-1], "vector", meaning)
        self.columns = inner // self.vector
        usual = min((n for n in LANES if n >= min(self.columns, 32)), default=32)
        meaning = "threads side by side on the elements of an item"
        self.lanes = tuning.number("lanes", LANES, usual, "tile", meaning)
        each = kernel.items // self.segments
        legal = [n for n in ROWS if n * self.lanes <= _THREADS] if kernel.op != "last" else [1]
        fitting = [n for n in legal if n * _ITEMS_OF_A_ROW <= max(each, _ITEMS_OF_A_ROW)]
        self.rows = tuning.number("rows", legal, fitting[-1], "parallel", "items of a segment read side by side")
        self.turns = math.ceil(self.columns / self.lanes)
        self.tasks = self.segments * self.turns
        blocks = math.ceil(self.tasks * self.lanes * self.rows / _THREADS)
        useful = [n for n in PARTS if n == 1 or (n * blocks <= 4 * device.cores and each >= n * _ITEMS_OF_A_PART)]
        parts, usual = (PARTS, useful[-1]) if kernel.op != "last" else ((1,), 1)
        self.parts = tuning.number("parts", parts, usual, "parallel", "blocks that share a segment")

    def _legal_vectors(self) -> list[int]:
        """Vector widths that all stores and the contiguous loads of an item allow, 1 first."""
        if not self.names:
            return [1]
        loads = [leaf for leaf in self.found if isinstance(leaf, Load) and self.items.stride_of(leaf.view) == 1]
        buffers = [store.buffer for store in self.kernel.stores] + [leaf.buffer for leaf in loads]
        limit = WIDEST_BYTES // max(ITEM_BYTES[self.plan.buffers[name].dtype] for name in buffers)
        aligned = [store.view for store in self.kernel.stores]
        return [1, *(v for v in (2, 4, 8) if v <= limit and all(self.places.is_aligned(view, v) for view in aligned))]

    # -- text

    def _inner(self, space: Space) -> Space:
        """The space at element j of a vector."""
        return space.with_inner(f"({self.names[-1]} + j)") if self.names and self.vector > 1 else space

    def _column(self) -> list[str]:
        """C statements that define the indices of the first element of a thread's vector."""
        if not self.names:
            return []
        sizes = self.items.sizes[1:]
        shown = (*self.names[:-1], f"{self.names[-1]}v") if self.vector > 1 else self.names
        lines = decompose("column", (*sizes[:-1], sizes[-1] // self.vector), shown, self.items.index)
        if self.vector > 1:
            lines.append(f"const {self.items.index} {self.names[-1]} = {shown[-1]} * {self.vector};")
        return lines

    def _value(self) -> list[str]:
        """C statements that read item `item` into x[j][k]."""
        loads = [leaf for leaf in leaves([self.kernel.value]) if isinstance(leaf, Load)]
        wide = [leaf for leaf in loads if self.vector > 1 and self.items.is_aligned(leaf.view, self.vector)]
        before = [
            f"const {vector_type(leaf.dtype, self.vector)} v{i} = "
            f"load_vec<{self.vector}>(b_{leaf.buffer} + {self.items.offset(leaf.view)});"
            for i, leaf in enumerate(wide)
        ]
        known: Known = [(leaf, element_load(f"v{i}.at[j]", leaf.dtype)) for i, leaf in enumerate(wide)]
        body = make_emitter(self._inner(self.items), known, {})
        text = body.value(self.kernel.value)
        body.lines.append(f"x[j][k] = ({register_type(self.kernel.dtype)})({text});")
        return [*before, *unroll(self.vector, body.lines)]

    def _store(self) -> list[str]:
        """C statements that store the results from `found`."""
        body = make_emitter(self._inner(self.places), [], {"acc": "acc", "count": "number"}, "s")
        body.lines += ["const T acc = found[j];", "const long long number = count;"]
        if self.vector == 1:
            body.store_all(self.kernel.stores, self.places.offset, self.plan.buffers)
            return unroll(1, body.lines)
        before, after = vector_stores(body, self.kernel.stores, self.places, self.vector, self.plan)
        return [*before, *unroll(self.vector, body.lines), *after]

    def _share(self) -> list[str]:
        """C statements that define `first` and `last`, the items of a segment that a block takes."""
        if self.kernel.op == "last":
            return ["const int last = begin + count, first = count > 0 ? last - 1 : last;"]
        if self.parts == 1:
            return ["const int first = begin, last = begin + count;"]
        bounds = [f"begin + (int)((long long)count * {part} / {self.parts})" for part in ("part", "(part + 1)")]
        return ["const int part = (int)blockIdx.y;", f"const int first = {bounds[0]}, last = {bounds[1]};"]

    def _store_part(self) -> list[str]:
        """C statements that write the results of a part of a segment to scratch memory."""
        place = f"((long long)blockIdx.y * {self.segments} + segment) * {self.columns * self.vector}"
        return unroll(self.vector, [f"parts[{place} + column * V + j] = found[j];"])

    def print(self) -> PrintedKernel:
        """The printed kernel, with one launch, or with a second one that joins parts."""
        kernel, name = self.kernel, symbol_of(self.kernel)
        combine, state = _COMBINE[kernel.op]
        values: dict[str, object] = {
            "NAME": name,
            "OP": kernel.op,
            "TYPE": register_type(kernel.dtype),
            "INDEX": self.items.index,
            "ITEMS": kernel.items,
            "SEGMENTS": self.segments,
            "COMBINE": combine,
            "STATE": state,
            "VECTOR": self.vector,
            "LANES": self.lanes,
            "ROWS": self.rows,
            "THREADS": _THREADS,
            "TURNS": self.turns,
            "COLUMNS": self.columns,
            "PARTS": self.parts,
            "ITEM": "order[at]" if kernel.order else "at",
            "ITEM_OF_ROUND": "order[at + k * ROWS]" if kernel.order else "at + k * ROWS",
            "COLUMN": indent(self._column()),
            "SHARE": indent(self._share(), 2),
        }
        texts, made = self._kernels(values, name)
        return print_launches(
            "\n".join(texts),
            made,
            self.tuning,
            template="segment",
            shared=["rows/segment.cuh"],
            workspace_bytes=self._part_bytes if self.parts > 1 else 0,
        )

    @property
    def _part_bytes(self) -> int:
        """Bytes of scratch memory for the results of all parts."""
        return self.parts * math.prod(self.kernel.shape) * max(4, ITEM_BYTES[self.kernel.dtype])

    def _kernels(self, values: dict[str, object], name: str) -> tuple[list[str], list[Launch]]:
        """(CUDA texts, launches) of the kernel for all segments, or of those for their parts and for joining these."""
        kernel = self.kernel
        own = f"const int* __restrict__ starts{', const int* __restrict__ order' if kernel.order else ''}"
        after = leaves(store.value for store in kernel.stores)
        together = self.parts == 1
        read = [*leaves([kernel.value]), *(after if together else ())]
        signature, arguments = signature_of(self.plan, read, kernel.stores if together else ())
        parts = "" if together else f"{values['TYPE']}* __restrict__ parts"
        signature = ", ".join(filter(None, [signature, own, parts]))
        memory = [] if together else [launches.workspace_argument(0)]
        filled = values | {"PARAMETERS": signature, "VALUE": indent(self._value(), 4)}
        filled["STORE"] = indent(self._store() if together else self._store_part())
        texts = [_filled("segment.cu", filled)]
        blocks = math.ceil(self.tasks / (_THREADS // (self.lanes * self.rows)))
        grid, block = (blocks, self.parts, 1), (_THREADS, 1, 1)
        made = [Launch(name, grid, block, (*arguments, kernel.starts, *filter(None, [kernel.order]), *memory))]
        if not together:
            signature, arguments = signature_of(self.plan, after, kernel.stores)
            own = f"const int* __restrict__ starts, const {values['TYPE']}* __restrict__ parts"
            filled = values | {"PARAMETERS": f"{signature}, {own}", "STORE": indent(self._store())}
            texts.append(_filled("segment_join.cu", filled))
            grid = (math.ceil(self.segments * self.columns / _THREADS), 1, 1)
            made.append(Launch(f"{name}_join", grid, block, (*arguments, kernel.starts, *memory)))
        return texts, made


def _filled(name: str, values: dict[str, object]) -> str:
    """The template cuda/rows/`name` with its holes filled."""
    return fill(read_library_text(f"cuda/rows/{name}"), values)
