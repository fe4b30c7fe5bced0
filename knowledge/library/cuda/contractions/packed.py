"""Matrix products in CUDA from packed operands: a launch for each operand brings it into the order that wgmma reads,
then the main loop copies whole tiles with the bulk copy engine while four warps at a time multiply.

16-bit operands whose rows lie along k need no packing: the copy engine brings their tiles as wgmma reads them. For
others packing costs a read and a write and saves everything else: any expression, any strides, edges, rounding to TF32,
or scaling to 16 bits (`half`: a power of two a row, 11 significant bits as TF32 has, at twice its rate).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from foundry.knowledge.candidate import Choice
from foundry.knowledge.device import Device
from foundry.knowledge.library.cuda import launches as cuda_launch
from foundry.knowledge.library.cuda.contractions.gemm_tiles import Tiling
from foundry.knowledge.library.cuda.contractions.operands import Spaces, Tile, spaces_of, strided_operand
from foundry.knowledge.library.cuda.contractions.tensor_tiles import GUESS, HALF, SIZES, TYPES
from foundry.knowledge.library.cuda.contractions.tiled import GROUP, epilogue_lines
from foundry.knowledge.library.cuda.launches import Argument, Launch, TensorMap, max_shared_bytes
from foundry.knowledge.library.cuda.space import (
    Space,
    body_leaves,
    buffers_of,
    decompose,
    identifier,
    indent,
    index_type,
    leaves,
    parameters,
    tunable,
)
from foundry.knowledge.library.file.assemble import fill
from foundry.knowledge.library.file.texts import read_library_text
from foundry.knowledge.library.ir.kernels import Apply, GemmKernel, Iota, Load, Plan, PrintedKernel, Tunable

_THREADS = 256  # of a packing launch
_ROW_BYTES = 128
_ALIGN = 1024
_MOST_HELD = 8  # 16-byte pieces of a row in a thread's registers
# Of each thread that copies and of each that multiplies, by the number of warpgroups that multiply.
_REGISTERS = {1: (0, 255), 2: (40, 232), 3: (32, 160)}
_VALUES: dict[str, tuple[int, ...]] = {
    "tile_m": (64, 128, 256),
    "tile_n": (64, 128, 256),
    "group_m": (64, 128),
    "group_n": (64, 128, 256),
    "stages": (2, 3, 4, 5, 6),
}
_MEANING = {
    "tile_m": ("tile", "rows of a block's tile: larger reads b less often, smaller fills more multiprocessors"),
    "tile_n": ("tile", "columns of a block's tile: larger reads a less often"),
    "group_m": ("tile", "rows that a warpgroup adds up: more products per read of b, more registers"),
    "group_n": ("tile", "columns that a warpgroup adds up"),
    "stages": ("memory", "tiles in flight: more latency is hidden, more shared memory"),
}


@dataclass(frozen=True)
class PackedTiling:
    """A block's tile of the result, the part of it that each warpgroup adds up, and the ring's stages."""

    tile_m: int
    tile_n: int
    group_m: int
    group_n: int
    stages: int

    @property
    def threads(self) -> int:
        """Those of the warpgroups that multiply, and of the one that copies."""
        return self.groups * 128 + 128

    @property
    def groups(self) -> int:
        return (self.tile_m // self.group_m) * (self.tile_n // self.group_n)

    @property
    def shared_bytes(self) -> int:
        return self.stages * ((self.tile_m + self.tile_n) * _ROW_BYTES + 16)

    def legal(self, arch: str) -> bool:
        if self.tile_m % self.group_m or self.tile_n % self.group_n or self.groups not in _REGISTERS:
            return False
        registers = self.group_m * self.group_n // 128 + 64
        return registers <= _REGISTERS[self.groups][1] and self.shared_bytes <= max_shared_bytes(arch)


# With the share of the arithmetic rate that a tile of this shape reaches by itself.
_SHAPES = (
    (PackedTiling(128, 256, 64, 256, 4), 1.0),
    (PackedTiling(128, 128, 64, 128, 6), 0.85),
    (PackedTiling(64, 256, 64, 256, 4), 0.7),
    (PackedTiling(128, 64, 64, 64, 6), 0.6),
    (PackedTiling(64, 64, 64, 64, 6), 0.45),
)


def _waves_cost(kernel: GemmKernel, tiling: PackedTiling, rate: float, device: Device) -> float:
    tiles = math.prod(kernel.batch) * math.ceil(kernel.m / tiling.tile_m) * math.ceil(kernel.n / tiling.tile_n)
    return math.ceil(tiles / device.cores) * tiling.tile_m * tiling.tile_n / rate


def choose_packed(
    kernel: GemmKernel, device: Device, choices: dict[str, Choice]
) -> tuple[PackedTiling, tuple[Tunable, ...]]:
    """The chosen tiling, kept legal, and its tunables: for each, the values legal beside the others' present ones."""
    default = min(_SHAPES, key=lambda item: _waves_cost(kernel, item[0], item[1], device))[0]
    wanted = {name: int(value) for name, value in choices.items() if value in _VALUES.get(name, ())}
    tiling = replace(default, **wanted)
    if not tiling.legal(device.arch):
        tiling = default
    tunables = []
    for name, values in _VALUES.items():
        legal = [value for value in values if replace(tiling, **{name: value}).legal(device.arch)]
        aspect, meaning = _MEANING[name]
        tunables.append(tunable(name, legal, getattr(default, name), aspect, meaning))
    return tiling, tuple(tunables)


def in_place(kernel: GemmKernel, spaces: Spaces, which: str) -> tuple[Load, int, int] | None:
    """An operand that the copy engine reads as it is, with its strides from row to row and from batch point to batch
    point: 16-bit numbers in rows along k, aligned to 16 bytes."""
    expr, where = (kernel.a, spaces.a) if which == "a" else (kernel.b, spaces.b)
    expr = expr.args[0] if isinstance(expr, Apply) and expr.op == "cast" else expr
    if not isinstance(expr, Load) or expr.dtype not in ("float16", "bfloat16"):
        return None
    seen = where[expr.view]
    *batch, row, column = seen.strides if which == "a" else (*seen.strides[:-2], *seen.strides[:-3:-1])
    if len(batch) > 1 or column != 1 or row <= 0 or row % 8 or seen.offset or any(b < 0 or b % 8 for b in batch):
        return None
    return expr, row, batch[0] if batch else 0


class _Operand:
    """One operand on its way into tiles, and where its parts lie in the workspace."""

    def __init__(self, printer: _Printer, which: str) -> None:
        kernel, self.printer, self.which = printer.kernel, printer, which
        spaces = printer.spaces
        self.expr, where = (kernel.a, spaces.a) if which == "a" else (kernel.b, spaces.b)
        self.out, self.size = ("m", kernel.m) if which == "a" else ("n", kernel.n)
        self.tile_rows = printer.tiling.tile_m if which == "a" else printer.tiling.tile_n
        along = strided_operand(kernel, spaces, which, Tiling())
        self.tile: Tile = along if along.along_k else strided_operand(kernel, spaces, which, Tiling(), widest=1)
        batch_dims = len(spaces.batch_sizes)
        self.is_batched = any(any(view.strides[:batch_dims]) for view in where.values())
        self.padded = math.ceil(self.size / self.tile_rows) * self.tile_rows
        self.rows = self.padded * (printer.batch if self.is_batched else 1)
        self.bytes = self.rows * printer.steps * _ROW_BYTES
        self.at = self.exponents_at = self.peaks_at = 0
        self.map = self._map()
        is_constant = kernel.constant_a if which == "a" else kernel.constant_b
        reads = [leaf.buffer for leaf in leaves([self.expr]) if not isinstance(leaf, Iota)]
        self.prepares = is_constant and bool(reads) and all(_is_parameter(printer.plan, name) for name in reads)

    def _map(self) -> TensorMap | None:
        """The operand as the copy engine reads it, where it does."""
        printer = self.printer
        found = in_place(printer.kernel, printer.spaces, self.which)
        if found is None or found[0].dtype != printer.precision:
            return None
        load, row, step = found
        sizes = (printer.kernel.k, self.size, printer.batch if self.is_batched else 1)
        box = (_ROW_BYTES // SIZES[printer.precision], self.tile_rows, 1)
        return TensorMap(load.buffer, load.dtype, sizes, (2 * row, 2 * (step or row * self.size)), box)

    def memory(self, offset: int) -> str:
        """The argument for what lies `offset` bytes into the memory that this operand is packed into."""
        return cuda_launch.prepared(offset) if self.prepares else cuda_launch.workspace(offset)

    def place(self, begin: int) -> int:
        """Takes memory from `begin` bytes on; returns where the next operand of the same memory may begin."""
        if self.map:
            return begin
        self.at = begin
        self.exponents_at = begin + self.bytes
        self.peaks_at = self.exponents_at + (_aligned(4 * self.rows) if self.printer.is_half else 0)
        needs_peaks = self.printer.is_half and not self.tile.along_k
        return self.peaks_at + (_aligned(4 * self.rows * self.printer.steps) if needs_peaks else 0)

    def copy(self) -> str:
        """The statement that brings a step's tile into a stage."""
        which, letter = self.which, self.which.upper()
        to = "to" if which == "a" else "to + TileA::BYTES"
        if self.map:
            x = f"step * {_ROW_BYTES // SIZES[self.printer.precision]}"
            return f"bulk::copy_box({to}, &map_{which}, {x}, (int)first_{self.out}, {self.batch}, full + stage);"
        place = f"packed_{which} + (place_{self.out} * STEPS + step) * Tile{letter}::BYTES"
        return f"bulk::copy({to}, {place}, Tile{letter}::BYTES, full + stage);"

    @property
    def batch(self) -> str:
        """The batch point whose rows the main loop reads."""
        return "batch" if self.is_batched and self.printer.batch > 1 else "0"

    def _holes(self) -> dict[str, object]:
        printer, kernel = self.printer, self.printer.kernel
        spaces = printer.spaces
        place: list[str] = []
        if self.is_batched and spaces.batch_sizes:
            place = [f"const int batch = (int)(row / {self.padded});"]
            place += decompose("batch", spaces.batch_sizes, spaces.batch_names, self.tile.index)
        return {
            "WHICH": self.which,
            "KERNEL": printer.name,
            "PRECISION": TYPES[printer.precision],
            "INDEX": self.tile.index,
            "OUT": self.out,
            **{"ROWS": self.rows, "PADDED": self.padded, "SIZE": self.size, "K": kernel.k},
            **{"STEPS": printer.steps, "TILE": self.tile_rows, "VECTOR": self.tile.vector},
            "GUESS": GUESS if printer.is_half else 0,
            "BATCH": indent(place),
            "READ": indent(self.tile.read("held"), 4),
        }

    def _signature(self) -> tuple[list[str], list[str], list[str]]:
        """Parameters that packing has, their names, and the arguments: what is read, and where it is packed."""
        reads, _ = buffers_of(leaves([self.expr]), [])
        text, arguments = parameters(self.printer.plan, reads, [])
        packed = f"packed_{self.which}"
        texts = [*([text] if text else []), f"unsigned char* __restrict__ {packed}"]
        return texts, [*(f"b_{name}" for name in arguments), packed], [*arguments, self.memory(self.at)]

    def sources(self) -> Iterator[tuple[str, Launch]]:
        """The launches that pack it, in order."""
        if not self.map:
            yield from self._along() if self.tile.along_k else self._across()

    def _along(self) -> Iterator[tuple[str, Launch]]:
        """A row is read once, where the threads that share it can keep it."""
        texts, _, slots = self._signature()
        which, is_half = self.which, self.printer.is_half
        pieces = self.printer.steps * 8
        team = 32 if pieces <= 32 * _MOST_HELD or not is_half else _THREADS
        held = math.ceil(pieces / team) if is_half and pieces <= team * _MOST_HELD else 0
        if is_half:
            texts.append(f"int* __restrict__ exponents_{which}")
            slots.append(self.memory(self.exponents_at))
        holes = self._holes() | {"PARAMETERS": ", ".join(texts), "TEAM": team, "HELD": held}
        scale = indent(self._scale(team, held)) if is_half else ""
        blocks = math.ceil(self.rows * team / _THREADS)
        yield _text("pack_along.cu", holes | {"SCALE": scale}), self._launch("pack", blocks, slots)

    def _across(self) -> Iterator[tuple[str, Launch]]:
        """Rows are read side by side and packed with the scale that most have; those that need another, again."""
        texts, names, slots = self._signature()
        which, is_half = self.which, self.printer.is_half
        peaks = self.memory(self.peaks_at)
        keep = f"peaks_{which}[step * (long long){self.rows} + row] = largest;" if is_half else ""
        holes = self._holes() | {"PARAMETERS": ", ".join(texts), "ARGUMENTS": ", ".join(names)}
        holes |= {"PEAKS": f", float* __restrict__ peaks_{which}" if is_half else "", "KEEP_PEAK": indent([keep])}
        blocks = math.ceil(self.rows * self.printer.steps / _THREADS)
        yield _text("pack_across.cu", holes), self._launch("pack", blocks, [*slots, *([peaks] if is_half else [])])
        if is_half:
            slots = [*slots, peaks, self.memory(self.exponents_at)]
            yield _text("pack_repair.cu", holes), self._launch("repair", math.ceil(self.rows / 32), slots)

    def _launch(self, what: str, blocks: int, arguments: list[str]) -> Launch:
        name = f"{self.printer.name}_{what}_{self.which}"
        return Launch(name, (blocks, 1, 1), (_THREADS, 1, 1), tuple(arguments), prepares=self.prepares)

    def _scale(self, team: int, held: int) -> list[str]:
        """Statements that find `scale` and keep its exponent for the end of the product."""
        again = [
            f"for (int piece = member; piece < {self.printer.steps} * 8; piece += TEAM) {{",
            "fetch(piece * PIECE, value[0]);",
            "for (int e = 0; e < PIECE; ++e) largest = math::maximum(largest, pack::finite(value[0][e]));",
            "}",
        ]
        kept = [
            "#pragma unroll",
            "for (int i = 0; i < HELD * PIECE; ++i)",
            "    largest = math::maximum(largest, pack::finite(value[i / PIECE][i % PIECE]));",
        ]
        lines = ["float largest = 0.0f;", *(kept if held else again)]
        lines += [
            "#pragma unroll",
            "for (int mask = 16; mask; mask /= 2)",
            "    largest = math::maximum(largest, __shfl_xor_sync(0xffffffffu, largest, mask));",
        ]
        if team > 32:
            lines += [
                f"__shared__ float warps[{team // 32}];",
                "if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = largest;",
                "__syncthreads();",
                f"for (int i = 0; i < {team // 32}; ++i) largest = math::maximum(largest, warps[i]);",
            ]
        return [
            *lines,
            "const int exponent = pack::exponent_for(largest);",
            "scale = pack::power(exponent);",
            f"if (member == 0) exponents_{self.which}[row] = -exponent;",
        ]


class _Printer:
    def __init__(
        self, kernel: GemmKernel, plan: Plan, device: Device, choices: dict[str, Choice], precision: str
    ) -> None:
        self.kernel, self.plan, self.precision = kernel, plan, precision
        self.spaces: Spaces = spaces_of(kernel)
        self.tiling, self.tunables = choose_packed(kernel, device, choices)
        self.name = cuda_launch.KERNEL_PREFIX + identifier(kernel.name)
        self.batch = math.prod(kernel.batch)
        self.steps = math.ceil(kernel.k * SIZES[precision] / _ROW_BYTES)
        self.tiles = math.ceil(kernel.m / self.tiling.tile_m), math.ceil(kernel.n / self.tiling.tile_n)
        self.operands = {which: _Operand(self, which) for which in ("a", "b")}
        self.workspace_bytes = self.prepared_bytes = 0
        for operand in self.operands.values():
            if operand.prepares:
                self.prepared_bytes = operand.place(self.prepared_bytes)
            else:
                self.workspace_bytes = operand.place(self.workspace_bytes)

    @property
    def is_half(self) -> bool:
        return self.precision == HALF

    def _batch(self) -> list[str]:
        if not self.spaces.batch_sizes:
            return []
        lines = [f"const int batch = (int)blockIdx.x / {self.tiles[0] * self.tiles[1]};"]
        return [*lines, *decompose("batch", self.spaces.batch_sizes, self.spaces.batch_names, self._out().index)]

    def _out(self) -> Space:
        sizes = (*self.spaces.batch_sizes, self.kernel.m, self.kernel.n)
        names = (*self.spaces.batch_names, "m", "n")
        return Space(sizes, names, self.spaces.out, index_type(sizes, self.spaces.out.values()))

    def _epilogue(self) -> tuple[list[str], list[str]]:
        """(what is known once a row, the stores at (m, n .. n + 3))."""
        kernel, tiling = self.kernel, self.tiling
        tests = [f"m < {kernel.m}"] if kernel.m % tiling.tile_m else []
        tests += [f"n < {kernel.n}"] if kernel.n % tiling.tile_n else []
        element = f"n + j < {kernel.n}" if kernel.n % 4 else ""
        acc, of_row, of_column = "acc[i][h * 4 + j]", [], []
        if self.is_half:
            acc = f"pack::scaled({acc}, row_exponent + column_exponent.at[j])"
            of_row = ["const int row_exponent = exponents_a[place_m * BM + (int)(m - first_m)];"]
            at = "exponents_b + place_n * BN + (int)(n - first_n)"
            of_column = [f"const Vec<int, 4> column_exponent = load_vec<4>({at});"]
        lines = epilogue_lines(self._out(), kernel.stores, self.plan, acc, 4, " && ".join(tests), element)
        return of_row, [*of_column, *lines]

    def _main(self) -> tuple[str, Launch]:
        reads, writes = buffers_of(body_leaves(self.kernel.stores), self.kernel.stores)
        signature, arguments = parameters(self.plan, reads, writes)
        more: list[str] = []
        slots: list[Argument] = []
        for which, operand in self.operands.items():
            if operand.map:
                more.append(f"const __grid_constant__ bulk::Map map_{which}")
                slots.append(operand.map)
            else:
                more.append(f"const unsigned char* __restrict__ packed_{which}")
                slots.append(operand.memory(operand.at))
            if self.is_half:
                more.append(f"const int* __restrict__ exponents_{which}")
                slots.append(operand.memory(operand.exponents_at))
        of_row, epilogue = self._epilogue()
        tiling = self.tiling
        own, most = _REGISTERS[tiling.groups]
        holes: dict[str, object] = {
            "NAME": self.name,
            "PARAMETERS": ", ".join([*more, *([signature] if signature else [])]),
            "PRECISION": TYPES[self.precision],
            "INDEX": self._out().index,
            **{"BM": tiling.tile_m, "BN": tiling.tile_n, "GM": tiling.group_m, "GN": tiling.group_n},
            **{"THREADS": tiling.threads, "STAGES": tiling.stages, "STEPS": self.steps, "GROUP": GROUP},
            **{"TILES_M": self.tiles[0], "TILES_N": self.tiles[1]},
            **{"BATCH_A": self.operands["a"].batch, "BATCH_B": self.operands["b"].batch},
            **{"COPY_A": self.operands["a"].copy(), "COPY_B": self.operands["b"].copy()},
            "BATCH": indent(self._batch()),
            "GIVE_UP": f"        wgmma::give_up<{own}>();" if own else "",
            "CLAIM": f"    wgmma::claim<{most}>();" if own else "",
            "ROW_SCALE": indent(of_row, 2),
            "EPILOGUE": indent(epilogue, 3),
        }
        grid = (self.tiles[0] * self.tiles[1] * self.batch, 1, 1)
        block = (tiling.threads, 1, 1)
        return _text("gemm_packed.cu", holes), Launch(self.name, grid, block, (*slots, *arguments), tiling.shared_bytes)

    def print(self) -> PrintedKernel:
        parts = [item for operand in self.operands.values() for item in operand.sources()]
        parts.append(self._main())
        kind = "tf32" if self.precision == "tf32" else "sixteen"
        shared = ("mma", f"mma_{kind}", "wgmma", f"wgmma_{kind}", "bulk", "pack")
        return PrintedKernel(
            functions="\n".join(text for text, _ in parts),
            call=cuda_launch.encode([launch for _, launch in parts]),
            template="gemm",
            choices=asdict(self.tiling),
            tunables=self.tunables,
            d_mem=3,
            d_algo=1 if len(self.kernel.ops) > 1 else 0,
            d_sync=2,
            workspace_bytes=self.workspace_bytes,
            prepared_bytes=self.prepared_bytes,
            launches=len(parts),
            labels={"tf32": ("tf32",), HALF: ("tf32:half",)}.get(self.precision, ()),
            arch_feature="a",
            shared=tuple(read_library_text(f"cuda/contractions/{name}.cuh") for name in shared),
        )


def _is_parameter(plan: Plan, name: str) -> bool:
    return plan.buffers[name].role == "parameter"


def _aligned(size: int) -> int:
    return math.ceil(size / _ALIGN) * _ALIGN


def _text(name: str, holes: dict[str, object]) -> str:
    text = read_library_text(f"cuda/contractions/{name}")
    return fill(text, {key: str(value) for key, value in holes.items() if f"@{key}@" in text})


def print_packed(
    kernel: GemmKernel, plan: Plan, device: Device, choices: dict[str, Choice], precision: str
) -> PrintedKernel:
    return _Printer(kernel, plan, device, choices, precision).print()
