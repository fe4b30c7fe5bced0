"""Text that all forms of a CPU map share: a lambda that computes one point, and the loop that runs it in vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from foundry.knowledge.compiler.cpu.map_staged import StagedElements, staged_sweep
from foundry.knowledge.compiler.cpu.space import Known, element_type, find_invariants, hoist, indent, register_type
from foundry.knowledge.compiler.ir.access import loaded_names
from foundry.knowledge.compiler.ir.kernels import MapKernel, Plan, View
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, Emitter, loader

_LEAST_BLOCK = 16  # points of a block at the end of a row: a vector of float32, where they are widest

At = Callable[[View, str], str]
"""C offset of a view where the index that the sweep moves is the given text."""


@dataclass(frozen=True)
class Vectors:
    """The inner loop: `lanes` points at a time, under the pragma `simd`. `streamed`: stores go past the caches.
    `is_one_loop`: one loop over all points, which the compiler cuts into vectors."""

    lanes: int
    simd: str
    streamed: bool
    is_one_loop: bool = False


@dataclass(frozen=True)
class Points:
    """The points of one kernel along one index, which the C++ lambda `point` computes."""

    kernel: MapKernel
    plan: Plan
    at: At
    moving: Callable[[View], bool]  # True for a view that the sweep's index moves
    staging: StagedElements | None = None

    def define(self, known: Known, index: str) -> tuple[list[str], list[str]]:
        """(C++ statements hoisted out of the loop, the lambda `point`, which computes the point at `index` into
        references)."""
        values = [store.value for store in self.kernel.stores]

        def offset(view: View) -> str:
            """C text of a view's offset at the point `index`."""
            return self.at(view, index)

        staged = self.staging.loads if self.staging else ()
        known = [*known, *((load, f"g{number}") for number, load in enumerate(staged))]
        hoisted, known = hoist(find_invariants(values, self.moving), offset, {}, known, "h")
        emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), {}, known=known)
        emitter.reserve(values)
        for slot, store in enumerate(self.kernel.stores):
            dtype = self.plan.buffers[store.buffer].dtype
            emitter.lines.append(f"y{slot} = {CPU_DIALECT.store(emitter.value(store.value), dtype)};")
        outs = [f"{kind}& y{slot}" for slot, kind in enumerate(self._types())]
        outs += [f"const {register_type(load.dtype)} g{number}" for number, load in enumerate(staged)]
        point = [
            f"const auto point = [&](int64_t {index}, {', '.join(outs)}) __attribute__((always_inline)) {{",
            indent(emitter.lines, 1),
            "};",
        ]
        return hoisted, point

    def sweep(self, begin: str, end: str, vectors: Vectors, shortest: int, exact: bool) -> list[str]:
        """C++ statements that run `point` in blocks of `vectors.lanes` from `begin` to `end`, at least `shortest`
        points.

        `exact`: their number is a multiple of the block.

        Points that are left over are covered by a last block that ends at `end` and computes some points a second time,
        which is faster than a scalar loop; it is no longer than they need. A kernel that reads what it writes gets the
        scalar loop."""
        lanes = vectors.lanes
        if self.staging is not None:
            return staged_sweep(
                self.kernel, self.plan, self.staging, at=self.at, begin=begin, end=end, simd=vectors.simd
            )
        if vectors.is_one_loop:
            return [vectors.simd, *_scalar_loop(begin, end, self._targets("l"))]
        if shortest < lanes and not exact:
            return [*_scalar_loop(begin, end, self._targets("l"))]
        lines = [f"int64_t i = {begin};", f"for (; i + {lanes} <= {end}; i += {lanes}) {{", *self._block(vectors), "}"]
        if exact:
            return lines
        if self._reads_its_results():
            return [*lines, *_scalar_loop("i", end, self._targets("l"))]
        last = replace(vectors, lanes=_last_block(begin, end, lanes))
        return [*lines, f"if (i < {end}) {{", f"  i = {end} - {last.lanes};", *self._block(last), "}"]

    def _block(self, vectors: Vectors) -> list[str]:
        """C++ statements that compute and store one block of points at `i`."""
        head = f"  {vectors.simd}\n  for (int l = 0; l < {vectors.lanes}; ++l) point(i + l, "
        if not vectors.streamed:
            return [f"{head}{self._targets('i + l')});"]
        types = self._types()
        return [
            *[f"  alignas(64) {kind} y{slot}[{vectors.lanes}];" for slot, kind in enumerate(types)],
            head + ", ".join(f"y{slot}[l]" for slot in range(len(types))) + ");",
            *[
                f"  stream(b_{store.buffer} + ({self.at(store.view, 'i')}), y{slot});"
                for slot, store in enumerate(self.kernel.stores)
            ],
        ]

    def _targets(self, index: str) -> str:
        """C text of the elements that the stores write at `index`, as arguments of `point`."""
        return ", ".join(f"b_{s.buffer}[{self.at(s.view, f'({index})')}]" for s in self.kernel.stores)

    def _types(self) -> list[str]:
        """C types of the stored elements."""
        return [element_type(self.plan, store.buffer) for store in self.kernel.stores]

    def _reads_its_results(self) -> bool:
        """True if a stored value reads a buffer that the kernel writes."""
        written = {store.buffer for store in self.kernel.stores}
        return any(written & loaded_names(store.value) for store in self.kernel.stores)


def _last_block(begin: str, end: str, lanes: int) -> int:
    """Points of the last block: the smallest half, quarter ... of a block that holds the rest; `lanes` if bounds are no
    numbers."""
    if not (begin.isdigit() and end.isdigit()):
        return lanes
    rest, block = (int(end) - int(begin)) % lanes, lanes
    while block // 2 >= max(rest, _LEAST_BLOCK):
        block //= 2
    return block


def _scalar_loop(begin: str, end: str, targets: str) -> Sequence[str]:
    """A C++ loop that computes one point at a time from `begin` to `end`."""
    return [f"for (int64_t l = {begin}; l < {end}; ++l) point(l, {targets});"]


def power_of_two_below(value: int) -> int:
    """The largest power of two that is at most `value`, at least 1."""
    return 1 << max(0, value.bit_length() - 1)
