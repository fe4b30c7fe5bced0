"""Convolutions in CUDA as implicit matrix products: the kernels of `contractions/tiled.py` with gathered columns.

acc[channel, (image, position)] = sum over (input channel, tap) of weight * input. Padding is a zero that is never read.
A transposed convolution is one such product for each phase of its stride, with the taps that reach that phase. All
phases are one launch, neighbouring phases are neighbouring blocks, so that L2 joins their stores to the same lines.
Where tiles are too few for the device, blocks share the steps of one, and one more launch adds up their sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda import launches as cuda_launch
from foundry.knowledge.compiler.cuda.contractions.gemm import choose_tiling, label_precision, list_choices, need_feature
from foundry.knowledge.compiler.cuda.contractions.gemm_tiles import Tiling
from foundry.knowledge.compiler.cuda.contractions.operands import Tile, edge_tests
from foundry.knowledge.compiler.cuda.contractions.tensor_tiles import TensorTiling, Ways, WgmmaTiling
from foundry.knowledge.compiler.cuda.contractions.tiled import (
    epilogue_lines,
    shared_bytes,
    shared_texts,
    slab_bytes,
    slab_epilogue,
    slab_pitch,
    tiled_source,
)
from foundry.knowledge.compiler.cuda.convolutions.partial import PartialSums
from foundry.knowledge.compiler.cuda.convolutions.space import POSITION, ConvSpace
from foundry.knowledge.compiler.cuda.dialect import element_type
from foundry.knowledge.compiler.cuda.launches import Launch
from foundry.knowledge.compiler.cuda.space import decompose, list_parameters, loop_over_vector
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.conv_geometry import Geometry
from foundry.knowledge.compiler.ir.kernels import Const, GemmKernel, PrintedKernel, Tunable
from foundry.knowledge.device import Device

_PACK_THREADS = 256
_CONSTANT_TAPS = 512
_TURN_PITCH = 36  # a row of 32 columns on its way from registers to lanes, without bank conflicts
_AXES = range(3)
_PIXEL = ("photo", "j0", "j1", "j2")  # a column: its image, and its place among the outputs of its phase

# A thread always fetches the same columns of the tile, so their addresses are found once.
_COLUMNS = """\
struct Column { const @X_TYPE@* image; @INSIDE@ first; int i0, i1, i2; @MASK@ reads; };
Column column[@COLUMNS@];
#pragma unroll
for (int i = 0; i < @COLUMNS@; ++i) {
const @INDEX@ n = first_n + (int)(threadIdx.x + i * THREADS) % BN;
@DECOMPOSE@
column[i].image = @ORIGIN@;
const int i0 = (int)j0 * @STEP0@ - @LEAD0@, i1 = (int)j1 * @STEP1@ - @LEAD1@, i2 = (int)j2 * @STEP2@ - @LEAD2@;
column[i].i0 = i0, column[i].i1 = i1, column[i].i2 = i2;
column[i].first = (@INSIDE@)i0 * @STRIDE0@ + (@INSIDE@)i1 * @STRIDE1@ + (@INSIDE@)i2 * @STRIDE2@;
@READS@
}"""
# One bit for each tap of a column, set if it is inside the image: one test instead of three comparisons.
_MASK = """\
column[i].reads = 0;
#pragma unroll 1
for (int t = 0; t < @COUNT@; ++t) {
const int s0 = @TAPS@[@FIRST@ + t][0], s1 = @TAPS@[@FIRST@ + t][1], s2 = @TAPS@[@FIRST@ + t][2];
if (@TESTS@) column[i].reads |= (@MASK@)1 << t;
}"""


@dataclass(frozen=True)
class _Taps:
    """The kernel's taps, phase by phase; those that reach no output come last."""

    phases: tuple[tuple[int, ...], ...]  # first output along each axis, number of taps, first of them
    shifts: tuple[tuple[int, int, int], ...]  # inputs behind the window's begin along each axis
    order: tuple[int, ...]  # position in the kernel


def _order_taps(found: Geometry) -> _Taps:
    """The taps of a convolution, phase by phase."""
    phases: list[tuple[int, ...]] = []
    shifts: list[tuple[int, int, int]] = []
    order: list[int] = []
    _, high, wide = found.kernel.kernel
    steps = [axis.in_step for axis in found.axes]
    for part in found.parts:
        taps = list(product(*(axis.taps for axis in part)))
        phases.append((*(axis.start for axis in part), len(taps), len(order)))
        for tap in taps:
            d, h, w = (one.shift * step + one.phase for one, step in zip(tap, steps, strict=True))
            shifts.append((d, h, w))
            order.append((tap[0].index * high + tap[1].index) * wide + tap[2].index)
    unread = [index for index in range(math.prod(found.kernel.kernel)) if index not in set(order)]
    return _Taps(tuple(phases), (*shifts, *[(0, 0, 0)] * len(unread)), (*order, *unread))


@dataclass(frozen=True)
class _Gathered(Tile):
    """The gathered input as the second operand. `where` has C statements that define what `test` (the input exists) and
    `value` use besides `from`, the column."""

    columns: int = 1
    where: str = ""
    test: str = ""
    value: str = ""

    def place(self) -> list[str]:
        """C statements that find the place in the tile of the vector that a thread moves in round i."""
        if not self.along_k:
            return super().place()
        return [
            "const int item = threadIdx.x + i * THREADS;",
            f"const int in_n = item % {self.tile_out}, in_k = item / {self.tile_out} * {self.vector};",
        ]

    def fetch(self) -> list[str]:
        """C statements that gather a tile from global memory to registers; inputs that do not exist become zero."""
        lines = ["#pragma unroll", f"for (int i = 0; i < {self.loads}; ++i) {{", *self.place()]
        lines.append(f"const Column& from = column[i % {self.columns}];")
        lines.append(f"held_b[i] = Vec<{self.type}, {self.vector}>{{}};")
        inside = [*self.is_item(), *self.inside]
        read = f"held_b[i].at[j] = {self.value};"
        body = ["const int k = first_k + in_k + j;", f"if ({' && '.join(inside)}) {{" if inside else "{"]
        body += [self.where, f"if ({self.test}) {read}" if self.test else read, "}"]
        return [*lines, *loop_over_vector(self.vector, body), "}"]


class _Conv:
    """Prints a convolution as a product of `m` channels, `n` pixels and depth `k` (of a phase on average), for each
    group and phase."""

    def __init__(self, space: ConvSpace, device: Device, choices: dict[str, Choice]) -> None:
        self.space, self.found, self.kernel = space, space.found, space.kernel
        self.channels, self.m = self.found.in_per_group, self.found.out_per_group
        self.counts = tuple(axis.count for axis in self.found.axes)
        self.n = self.kernel.batch * math.prod(self.counts)
        self.phases = self.found.parts
        self.taps = _order_taps(self.found)
        self.k = self.channels * space.taps // len(self.phases)  # depth of a phase on average
        self.tiling, self.tunables = self._tiling(device, choices)
        wide = self.n + self.tiling.tile_n >= 2**31
        self.index = "long long" if wide else "int"
        weights = self.kernel.in_channels * self.m * space.taps
        self.weight_index = "int" if weights < 2**31 else "long long"
        self.packed = self.kernel.transposed
        # If four sums of a lane are no neighbours in the output, lanes exchange sums, so that a warp stores neighbours.
        last = self.found.axes[2]
        self.vector = 4 if len(last.parts) == 1 and last.parts[0].step == 1 and last.count % 4 == 0 else 1

    def _tiling(self, device: Device, choices: dict[str, Choice]) -> tuple[Tiling | TensorTiling, tuple[Tunable, ...]]:
        """(tiling, tunables) of the product; a transposed convolution is never split over k."""
        kernel = self.kernel
        zero = Const(0.0, kernel.dtype)
        batch = (kernel.groups, len(self.phases))
        shape = GemmKernel(
            kernel.name, batch, self.m, n=self.n, k=max(1, self.k), a=zero, b=zero, stores=(), dtype=kernel.dtype
        )
        splits = not kernel.transposed
        kept = {name: value for name, value in choices.items() if splits or name != "splits"}
        buffers = self.space.plan.buffers
        stored = {buffers[name].dtype for name in (kernel.x, kernel.weight)}
        ways = Ways(
            dtype=stored.pop() if len(stored) == 1 and "float64" not in stored else kernel.dtype,
            is_gathered=True,
            suits_wgmma=self.m % 128 == 0 and not kernel.transposed,
            ieee_only=self.space.plan.ieee_only,
        )
        tiling, tunables = choose_tiling(shape, ways, device, kept)
        if splits:
            return tiling, tunables
        return replace(tiling, splits=1), tuple(item for item in tunables if item.name != "splits")

    @property
    def _group(self) -> str:
        """C text of the number of the block's group."""
        return "group_index" if self.kernel.groups > 1 else "0"

    # ------------------------------------------------------------ operands

    def _weights(self) -> Tile:
        """The weights as the first operand: in phase order if they are packed, else as they are stored."""
        tiling, kind = self.tiling, self.space.type
        limit = edge_tests(("m", self.m, tiling.tile_m))
        if self.packed:
            vector = (2 if kind == "double" else 4) if self.m % 4 == 0 else 1
            row = f"({self.weight_index})({self._group} * {self.space.taps} + first_tap) * {self.channels} + k"
            read = f"load_vec<{vector}>(packed + ({row}) * {self.m} + m)"
            inside = (*limit, *(("k < depth",) if self.channels % tiling.tile_k else ()))
            return Tile(
                "a",
                inside,
                tiling,
                type=kind,
                index=self.weight_index,
                inner="m",
                vector=vector,
                read=lambda held: [f"{held}[i] = {read};"],
            )
        where = f"({self._group} * {self.m} + m) * {self.k} + k"
        inside = (*limit, *edge_tests(("k", self.k, tiling.tile_k)))
        wide = self.k % 4 == 0 and self.space.plan.buffers[self.kernel.weight].dtype == "float32"
        value = self.space.weight_value(f"b_{self.kernel.weight}[{where}]")
        read = f"held_a[i] = load_vec<4>(b_{self.kernel.weight} + {where});" if wide else f"held_a[i].at[0] = {value};"
        vector = 4 if wide else 1
        return Tile(
            "a", inside, tiling, type=kind, index=self.weight_index, inner="k", vector=vector, read=lambda held: [read]
        )

    def _tests(self, position: str) -> list[str]:
        """C tests that an input exists; [] if all do. `position`: C text of an axis' position, {d} its number."""
        axes = self.found.axes
        return [f"(unsigned)({position.format(d=d)}) < {axes[d].in_size}u" for d in _AXES if not axes[d].stays_inside]

    @property
    def _mask(self) -> str:
        """C type of the bits that say which inputs of a column exist; "" if all do, or taps are too many for bits."""
        most = self.found.most_taps
        if most > 64 or not (self._tests("") or self.n % self.tiling.tile_n):
            return ""
        return "unsigned" if most <= 32 else "unsigned long long"

    def _gathered(self) -> _Gathered:
        """The input as the second operand."""
        tiling, taps = self.tiling, f"{self.space.name}_taps[tap]"
        inside = edge_tests(("k", self.k, tiling.tile_k))
        where = f"const int c = k / {self.space.taps}, t = k % {self.space.taps}, tap = t;"
        if self.packed:
            inside = ("k < depth",) if self.channels % tiling.tile_k else ()
            where = f"const int c = k % {self.channels}, t = k / {self.channels}, tap = first_tap + t;"
        test = "from.reads >> t & 1"
        if not self._mask:
            known = ["from.reads"] if self.n % tiling.tile_n else []
            test = " && ".join([*known, *self._tests("from.i{d} + " + taps + "[{d}]")])
        at = f"from.first + ({self.space.inside})c * {self.kernel.x_strides[1]} + {self.space.name}_reads[tap]"
        along = ("k", 4) if isinstance(tiling, WgmmaTiling) else ("n", 1)
        return _Gathered(
            *("b", inside, tiling, self.space.type, self.index, *along, lambda _: []),
            columns=max(1, tiling.tile_n // tiling.threads),
            where=where,
            test=test,
            value=self.space.x_value(f"from.image[{at}]"),
        )

    def _columns(self) -> list[str]:
        """C statements that find the addresses of a thread's columns of the tile, and which of their inputs exist."""
        kernel, space, mask = self.kernel, self.space, self._mask
        exists = [f"n < {self.n}"] if self.n % self.tiling.tile_n else []
        reads = f"column[i].reads = {exists[0] if exists else 'true'};"
        if mask:
            holes = {
                "COUNT": f"{space.name}_phases[phase][3]" if self.packed else str(space.taps),
                "FIRST": "first_tap" if self.packed else "0",
                "TAPS": f"{space.name}_taps",
                "TESTS": " && ".join([*exists, *self._tests("i{d} + s{d}")]),
                "MASK": mask,
            }
            reads = fill(_MASK, holes)
        values: dict[str, object] = {
            "X_TYPE": space.x_type,
            "INSIDE": space.inside,
            "INDEX": self.index,
            "COLUMNS": max(1, self.tiling.tile_n // self.tiling.threads),
            "DECOMPOSE": "\n".join(decompose("n", (kernel.batch, *self.counts), _PIXEL, self.index)),
            "ORIGIN": space.origin("photo", self._group),
            "MASK": mask or "bool",
            "READS": reads,
        }
        for d in _AXES:
            axis = self.found.axes[d]
            values |= {f"STEP{d}": axis.in_step, f"LEAD{d}": axis.lead, f"STRIDE{d}": kernel.x_strides[2 + d]}
        return fill(_COLUMNS, values).splitlines()

    # ------------------------------------------------------------ phases

    def _tables(self) -> str:
        """CUDA text of the taps as constants; for phases also these, and the kernel that brings the weights into their
        order."""
        taps, space = self.taps, self.space
        strides = self.kernel.x_strides[2:]
        reads = [sum(s * stride for s, stride in zip(shift, strides, strict=True)) for shift in taps.shifts]
        values: dict[str, object] = {
            "NAME": space.name,
            # Constant memory answers a warp at once, but a module has only 64 KB of it.
            "MEMORY": "__constant__" if len(taps.order) <= _CONSTANT_TAPS else "__device__ const",
            "TAPS": len(taps.order),
            "SHIFTS": _print_rows(taps.shifts),
            "INSIDE": space.inside,
            "READS": ", ".join(map(str, reads)),
            "PHASES": len(taps.phases),
            "PHASE_ROWS": _print_rows(taps.phases),
            "ORDER": ", ".join(map(str, taps.order)),
            "W_TYPE": element_type(space.plan.buffers[self.kernel.weight].dtype),
            "TYPE": space.type,
            "WIDE": self.weight_index,
            "POINTS": self.kernel.in_channels * self.m * space.taps,
            "M": self.m,
            "CHANNELS": self.channels,
            "CHANNELS_M": self.channels * self.m,
            "ALL": self.channels * self.m * space.taps,
            "FOUND": space.weight_value("found"),
        }
        files = ["cuda/convolutions/taps.cu", *(["cuda/convolutions/phases.cu"] if self.packed else [])]
        holes = values
        return "".join(fill(read_library_text(name), holes) for name in files)

    def _block(self, tiles: int) -> list[str]:
        """C statements that find the phase, group and part of the steps of a block, and its columns; phases vary
        fastest."""
        lines = []
        if self.packed:
            table = f"{self.space.name}_phases[phase]"
            lines += [f"const int phase = (int)blockIdx.x % {len(self.phases)};"]
            lines += [f"const int depth = {table}[3] * {self.channels}, first_tap = {table}[4];"]
        splits = self.tiling.splits
        if splits > 1:
            lines += [f"const int split_steps = {self._steps_of_split}, all_steps = {self._steps};"]
            every = f" % {splits}" if self.kernel.groups > 1 else ""
            lines += [f"const int split = (int)blockIdx.x / {tiles}{every};"]
        if self.kernel.groups > 1:
            lines.append(f"const int group_index = (int)blockIdx.x / {tiles * len(self.phases) * splits};")
        return [*lines, *self._columns()]

    @property
    def _steps(self) -> int:
        """Number of tiles along k."""
        return math.ceil(self.k / self.tiling.tile_k)

    @property
    def _steps_of_split(self) -> int:
        """Number of tiles along k of a block's part."""
        return math.ceil(self._steps / self.tiling.splits)

    # ------------------------------------------------------------ epilogue

    def _output(self, flat: str) -> tuple[list[str], list[str]]:
        """(C statements that define the output's indices from `flat`, C tests that it exists)."""
        lines = decompose(flat, (self.kernel.batch, *self.counts), _PIXEL, self.index)
        lines.append(f"const {self.space.image} image = photo;")
        tests = []
        for d in _AXES:
            axis = self.found.axes[d]
            start = f" + {self.space.name}_phases[phase][{d}]" if len(axis.parts) > 1 else ""
            lines.append(f"const int {POSITION[d]} = (int)j{d} * {axis.parts[0].step}{start};")
            if any(part.count < axis.count for part in axis.parts):
                tests.append(f"{POSITION[d]} < {self.kernel.output_size[d]}")
        return lines, tests

    def _epilogue(self) -> tuple[list[str], list[str]]:
        """(C statements between the products and the stores, C statements that store at (m, n .. n + 3))."""
        stores, plan, space = self.kernel.stores, self.space.plan, self.space.outputs()
        tests = list(edge_tests(("m", self.m, self.tiling.tile_m), ("n", self.n, self.tiling.tile_n)))
        if self._partial:
            return [], self._partial.store(tests)
        if isinstance(self.tiling, TensorTiling) and self.vector == 1:
            return self._slab(self.tiling, tests)
        if self.vector == 4:
            lines, more = self._output("n")
            assert not more
            channel = f"const int channel = {self._group} * {self.m} + (int)m;"
            body = [
                *lines,
                channel,
                *epilogue_lines(space, stores, plan, acc="acc[i][h * 4 + j]", vector=4, guard="", element_guard=""),
            ]
            return [], [f"if ({' && '.join(tests)}) {{" if tests else "{", *body, "}"]
        pitch, kind = _TURN_PITCH, self.space.type
        before = ["__syncthreads();", f"{kind}* const turned = tiles + warp * {4 * pitch};"]
        lines, more = self._output("column_n")
        tests = [test.replace("m <", "row_m <").replace("n <", "column_n <") for test in tests]
        body = [
            f"const int channel = {self._group} * {self.m} + (int)row_m;",
            *epilogue_lines(
                space, stores, plan, acc=f"turned[e * {pitch} + lane]", vector=1, guard="", element_guard=""
            ),
        ]
        inside = [*tests, *more]
        return before, [
            "#pragma unroll",
            f"for (int j = 0; j < 4; ++j) turned[lane / 8 * {pitch} + lane % 8 * 4 + j] = acc[i][h * 4 + j];",
            "__syncwarp();",
            f"const {self.index} column_n = n - lane % 8 * 4 + lane;",
            *lines,
            "#pragma unroll",
            "for (int e = 0; e < 4; ++e) {",
            f"const {self.index} row_m = m + (e - lane / 8) * 4;",
            *([f"if ({' && '.join(inside)}) {{"] if inside else ["{"]),
            *body,
            "}",
            "}",
            "__syncwarp();",
        ]

    def _slab(self, tiling: TensorTiling, tests: list[str]) -> tuple[list[str], list[str]]:
        """(C statements between the products and the stores, C statements that store a warp's 16 rows) on tensor cores:
        rows of a warp's sums go through shared memory."""
        lines, more = self._output("column_n")
        tests = [test.replace("m <", "row_m <").replace("n <", "column_n <") for test in tests]
        space, plan = self.space.outputs(), self.space.plan
        channel = f"const int channel = {self._group} * {self.m} + (int)row_m;"
        stores = epilogue_lines(space, self.kernel.stores, plan, acc="value", vector=1, guard="", element_guard="")
        before = [
            "__syncthreads();",
            f"float* const slab = reinterpret_cast<float*>(tiles) + warp * {16 * slab_pitch(tiling)};",
        ]
        return before, slab_epilogue(tiling, self.index, lines, [*tests, *more], [channel, *stores])

    # ------------------------------------------------------------ the whole

    def _shared_bytes(self, a: Tile, b: Tile) -> int:
        """Bytes of dynamic shared memory: the main loop, or the exchange of sums if that is larger."""
        turned = 0
        if self._partial:
            return shared_bytes(a, b)
        if self.vector == 1 and isinstance(self.tiling, TensorTiling):
            turned = slab_bytes(self.tiling)
        elif self.vector == 1:
            turned = self.tiling.threads // 32 * 4 * _TURN_PITCH * self.space.item_bytes
        return max(shared_bytes(a, b), turned)

    @property
    def _partial(self) -> PartialSums | None:
        """The partial sums in scratch memory if k is split, else None."""
        return PartialSums(self.space, self.counts, self.index, self.tiling.splits) if self.tiling.splits > 1 else None

    def _signature(self) -> tuple[str, list[str]]:
        """(C parameter list, arguments) of the products, without packed weights."""
        if self._partial is None:
            return self.space.signature(() if self.packed else (self.kernel.weight,))
        signature, arguments = list_parameters(self.space.plan, [self.kernel.x, self.kernel.weight], [])
        return f"{signature}, {self._partial.parameter}", [*arguments, self._partial.argument]

    def print(self) -> PrintedKernel:
        """The printed kernel: the launch that orders the weights by phases, if any, the products, and the launch that
        adds partial sums."""
        tiling, phases, name = self.tiling, len(self.phases), self.space.name
        tiles = (math.ceil(self.m / tiling.tile_m), math.ceil(self.n / tiling.tile_n))
        signature, arguments = self._signature()
        steps = ("0", "(depth + BK - 1) / BK" if self.packed else str(self._steps))
        if self._partial:
            steps = ("split * split_steps", "math::minimum<int>((split + 1) * split_steps, all_steps)")
        if self.packed:
            signature = f"const {self.space.type}* __restrict__ packed, {signature}"
            arguments = [cuda_launch.workspace_argument(0), *arguments]
        before, epilogue = self._epilogue()
        all_tiles = tiles[0] * tiles[1]
        a, b = self._weights(), self._gathered()
        source = tiled_source(
            *(name, signature, a, b, self.index, tiles, self._block(all_tiles)),
            *(steps, epilogue),
            tile=f"(int)blockIdx.x / {phases} % {all_tiles}" if phases > 1 else "",
            scalar=False,
            afterwards=before,
            is_slab=isinstance(tiling, TensorTiling) and self.vector == 1 and not self._partial,
        )
        grid = (all_tiles * phases * self.kernel.groups * tiling.splits, 1, 1)
        launches = [Launch(name, grid, (tiling.threads, 1, 1), tuple(arguments), self._shared_bytes(a, b))]
        weights = self.kernel.in_channels * self.m * self.space.taps
        source = self._tables() + source
        workspace_bytes = weights * self.space.item_bytes if self.packed else 0
        if self._partial:
            text, launch = self._partial.sum()
            source, workspace_bytes = f"{source}\n{text}", self._partial.bytes
            launches.append(launch)
        if self.packed:
            pack = (self.kernel.weight, cuda_launch.workspace_argument(0))
            launches.insert(
                0, Launch(f"{name}_pack", (math.ceil(weights / _PACK_THREADS), 1, 1), (_PACK_THREADS, 1, 1), pack)
            )
        return PrintedKernel(
            functions=source,
            call=cuda_launch.encode(launches),
            template="conv",
            choices=list_choices(tiling, self.tunables),
            tunables=self.tunables,
            labels=label_precision(tiling),
            shared=shared_texts(tiling),
            arch_feature=need_feature(tiling),
            workspace_bytes=workspace_bytes,
            launches=len(launches),
        )


def _print_rows(table: Sequence[Sequence[int]]) -> str:
    """C text of the rows of a table."""
    return ", ".join(f"{{{', '.join(map(str, row))}}}" for row in table)


def fits(space: ConvSpace) -> bool:
    """True: any convolution can be computed so."""
    return True


def print_algorithm(space: ConvSpace, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """The printed kernel, by `choices` or defaults."""
    return _Conv(space, device, choices).print()
