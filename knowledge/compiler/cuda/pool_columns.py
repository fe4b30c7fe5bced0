"""Pools whose input is read in order: columns of the input are reduced first, then windows of them in shared memory."""

from __future__ import annotations

import math

from foundry.knowledge.compiler.cuda.launches import Launch, symbol_of
from foundry.knowledge.compiler.cuda.pool_space import PoolSpace
from foundry.knowledge.compiler.cuda.printed import print_launches
from foundry.knowledge.compiler.cuda.space import (
    Known,
    decompose,
    element_load,
    indent,
    make_emitter,
    signature_of,
    unroll,
    vector_type,
    widest_vector,
)
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.kernels import Load, Named, Plan, PoolKernel, PrintedKernel
from foundry.knowledge.compiler.ir.views import nodes
from foundry.knowledge.compiler.schedule.tuning import Tuning

THREADS = (128, 256, 512)
STEPS = (1, 2, 4, 8, 16)
_BATCH = 12  # most loads that a lane has in flight
_SHARED_BYTES = 40 * 1024
_UNROLLED = 32


def fits_columns(kernel: PoolKernel) -> bool:
    """True if all outputs have windows of one size, and no store asks for the position of the maximum."""
    asked = any(isinstance(node, Named) and node.name == "index" for s in kernel.stores for node in nodes(s.value))
    return bool(kernel.kernel) and not asked


def print_columns(kernel: PoolKernel, plan: Plan, tuning: Tuning) -> PrintedKernel:
    """The printed kernel of a pool for which `fits_columns` is true; declares its tunables in `tuning`."""
    return _Columns(kernel, plan, tuning).print()


class _Columns:
    """Prints a pool whose teams of `lanes` threads take rows of outputs, each in `parts` of `outputs` elements.

    A team reduces each column of the input over the window's outer dimensions (`taps`) into shared memory, then windows
    of these columns. Loads are vectors of `vector` elements; a lane has `batch` of them in flight."""

    def __init__(self, kernel: PoolKernel, plan: Plan, tuning: Tuning) -> None:
        self.kernel, self.plan, self.tuning = kernel, plan, tuning
        self.space = PoolSpace(kernel, plan)
        loads = [leaf for leaf in self.space.found if isinstance(leaf, Load) and leaf.view.strides[-1]]
        wide = [v for v in (2, 4, 8) if v <= widest_vector(leaf.dtype for leaf in loads)]
        wide = [v for v in wide if any(self.space.inside.is_aligned(leaf.view, v) for leaf in loads)]
        self.vector = max([1, *wide])
        self.wide = [leaf for leaf in loads if self.vector == 1 or self.space.inside.is_aligned(leaf.view, self.vector)]
        self.threads = tuning.number("threads", THREADS, 256, "parallel", "threads of a block")
        meaning = "rows of outputs that a block takes one after the other"
        self.steps = tuning.number("steps", STEPS, 4 if self.space.rank > 1 else 1, "parallel", meaning)
        self.taps = math.prod(kernel.kernel[:-1])
        self.rows = math.prod(self.space.out_sizes[:-1])
        self.batch = max(n for n in range(1, min(self.taps, _BATCH) + 1) if self.taps % n == 0 or n == _BATCH)
        self._divide()

    def _divide(self) -> None:
        """Sets the lanes of a team and the teams of a block. Sets the outputs that a team computes at a time, the parts
        of a row, and the columns in shared memory (`width`)."""
        kernel = self.kernel
        size, out, stride = kernel.input_size[-1], kernel.output_size[-1], kernel.stride[-1]
        reach = (kernel.kernel[-1] - 1) * kernel.dilation[-1] + 1
        vectors = math.ceil(size / self.vector)
        self.lanes = min(self.threads, max(4, 1 << (vectors - 1).bit_length()))
        if 3 * vectors <= 2 * self.lanes and self.lanes > 4:  # most lanes twice are better than a third of them idle
            self.lanes //= 2
        self.teams = self.threads // self.lanes
        item = 8 if self.space.type in ("double", "long long") else 4
        most = _SHARED_BYTES // (2 * self.teams * item) // self.vector * self.vector
        self.outputs = min(out, max(1, (most - reach - 2 * self.vector) // stride + 1))
        if self.outputs < out and self.lanes == self.threads:  # a long row: as many columns as a few rounds read
            columns = min(most, self.lanes * self.vector * max(1, most // (2 * self.lanes * self.vector)))
            outputs = max(1, (columns - reach - 2 * self.vector) // stride + 1)
            self.outputs = outputs - outputs % self.vector if outputs > self.vector else outputs
        self.parts = math.ceil(out / self.outputs)
        self.width = math.ceil(((self.outputs - 1) * stride + reach + self.vector - 1) / self.vector) * self.vector

    def _begin(self) -> tuple[str, int | str]:
        """(C text of the first column of a part in shared memory, distance in columns from it to the first window)."""
        kernel, v = self.kernel, self.vector
        step, padding = self.outputs * kernel.stride[-1], kernel.padding[-1]
        lead = math.ceil(padding / v) * v
        if step % v == 0 or self.parts == 1:
            return f"part * {step} - {lead}", lead - padding
        begin = f"(part * {step} - {padding} + {lead}) / {v} * {v} - {lead}"
        return begin, f"(part * {step} - {padding} - begin_in)"

    def _tap(self) -> list[str]:
        """C statements that find tap `first + u` of the window's outer dimensions, and define `inside`: true if it is
        in the input."""
        kernel, rank = self.kernel, self.space.rank
        names = tuple(f"t{d}" for d in range(rank - 1))
        lines = ["const int tap = first + u;"] if rank > 1 or self.taps % self.batch else []
        tests = ["tap < TAPS"] if self.taps % self.batch else []
        if rank > 1:
            lines += decompose("tap", kernel.kernel[:-1], names, "int")
        for d in range(rank - 1):
            lines.append(f"const {self.space.index} i{d} = begin{d} + t{d} * {kernel.dilation[d]};")
            tests.append(f"i{d} >= 0 && i{d} < {kernel.input_size[d]}")
        return [*lines, f"const bool inside = {' && '.join(tests) or 'true'};"]

    def _loads(self) -> list[str]:
        """C statements that load vector `u` of each wide operand if its tap is in the input."""
        place = self.space.inside.with_inner("column")
        source = [f"load_vec<{self.vector}>(b_{leaf.buffer} + {place.offset(leaf.view)})" for leaf in self.wide]
        return [f"if (inside) v{i}[u] = {text};" for i, text in enumerate(source)]

    def _values(self) -> list[str]:
        """C statements that add the values of tap `u` to the sums of a vector's columns (or take their maximum)."""
        known: Known = [(leaf, element_load(f"v{i}[u].at[j]", leaf.dtype)) for i, leaf in enumerate(self.wide)]
        body = make_emitter(self.space.inside.with_inner("(column + j)"), known, {})
        body.lines.append(f"sum.at[j] = combine(sum.at[j], (T)({body.value(self.kernel.value)}));")
        loop = unroll(self.vector, body.lines)
        return ["if (inside) {", *loop, "}"]

    def _row(self) -> list[str]:
        """C statements that find output row `row` and the bounds of its windows along the outer dimensions."""
        space = self.space
        lines = (
            decompose("row", space.out_sizes[:-1], space.out_names[:-1], space.index) if space.out_sizes[:-1] else []
        )
        for d in range(space.rank - 1):
            lines += space.window_bounds(d)
        return lines

    def _stores(self) -> list[str]:
        """C statements that store the result of a window: the maximum, or the sum divided by the window's size."""
        if self.kernel.op == "max":
            return self.space.stores({"acc": "best"})
        lines = [*self.space.window_bounds(self.space.rank - 1), *self.space.divisor()]
        return [*lines, *self.space.stores({"acc": "(best / divisor)"})]

    def _sizes(self) -> dict[str, object]:
        """Numbers for the holes of pool_columns.cu."""
        kernel = self.kernel
        return {
            "THREADS": self.threads,
            "LANES": self.lanes,
            "TEAMS": self.teams,
            "VECTOR": self.vector,
            "TAPS": self.taps,
            "BATCH": self.batch,
            "WIDTH": self.width,
            "PARTS": self.parts,
            "OUTPUTS": self.outputs,
            "STEPS": self.steps,
            "ROWS": self.rows,
            "SIZE": kernel.input_size[-1],
            "OUT": kernel.output_size[-1],
            "UNROLL": min(kernel.kernel[-1], _UNROLLED),
            "WINDOW": kernel.kernel[-1],
            "STRIDE": kernel.stride[-1],
            "DILATION": kernel.dilation[-1],
        }

    def _texts(self) -> dict[str, object]:
        """Types and C statements for the holes of pool_columns.cu."""
        space, maximum = self.space, self.kernel.op == "max"
        begin, shift = self._begin()
        declared = [f"{vector_type(leaf.dtype, self.vector)} v{i}[BATCH];" for i, leaf in enumerate(self.wide)]
        return {
            "OP": "Maximum" if maximum else "Average",
            "TYPE": space.type,
            "INDEX": space.index,
            "COMBINE": "pool::larger(x, y)" if maximum else "x + y",
            "IDENTITY": "lowest<T>()" if maximum else "(T)0",
            "BEGIN_IN": begin,
            "SHIFT": shift,
            "ROW": indent(self._row(), 2),
            "DECLARE": indent(declared, 5),
            "TAP": indent(self._tap(), 6),
            "LOAD": indent(self._loads(), 6),
            "VALUE": indent(self._values(), 6),
            "BARRIER": "__syncwarp();" if self.lanes <= 32 else "__syncthreads();",
            "LAST": f"p{space.rank - 1}",
            "STORE": indent(self._stores(), 4),
        }

    def print(self) -> PrintedKernel:
        """The printed kernel, with one launch."""
        name = symbol_of(self.kernel)
        signature, arguments = signature_of(self.plan, [*self.space.found, *self.space.after], self.kernel.stores)
        values = {"NAME": name, "PARAMETERS": signature, **self._sizes(), **self._texts()}
        source = fill(read_library_text("cuda/pool_columns.cu"), values)
        blocks = math.ceil(self.rows / (self.teams * self.steps)) * self.parts
        launch = Launch(name, (blocks, 1, 1), (self.threads, 1, 1), tuple(arguments))
        return print_launches(source, [launch], self.tuning, template="pool", shared=["pool.cuh"])
