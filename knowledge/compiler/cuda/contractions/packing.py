"""Operands of a product on their way into tiles that warpgroups read: packed by launches of their own, or read
unpacked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from foundry.knowledge.compiler.cuda import launches as cuda_launch
from foundry.knowledge.compiler.cuda.contractions.gemm_tiles import Tiling
from foundry.knowledge.compiler.cuda.contractions.operands import Spaces, Tile, spaces_of, strided_operand
from foundry.knowledge.compiler.cuda.contractions.tensor_tiles import GUESS, HALF, HALF3, SIZES, TYPES
from foundry.knowledge.compiler.cuda.launches import Launch, TensorMap
from foundry.knowledge.compiler.cuda.space import buffers_of, decompose, indent, list_parameters
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.kernels import Apply, GemmKernel, Iota, Load, Plan
from foundry.knowledge.compiler.ir.views import leaves

ROW_BYTES = 128
_THREADS = 256  # threads of a block that packs
_ALIGN = 1024
_LONG = 1024  # pieces of a long row that a block packs
_MOST_HELD = 8  # 16-byte pieces of a row in a thread's registers


@dataclass(frozen=True)
class PackedProduct:
    """A product as packing sees it: its precision, and the rows of a tile of either operand."""

    name: str
    kernel: GemmKernel
    plan: Plan
    precision: str
    tile_m: int
    tile_n: int

    @cached_property
    def spaces(self) -> Spaces:
        """The collapsed views of the product."""
        return spaces_of(self.kernel)

    @property
    def batch(self) -> int:
        """Number of batch points."""
        return math.prod(self.kernel.batch)

    @property
    def steps(self) -> int:
        """Number of tiles along k."""
        return math.ceil(self.kernel.k * SIZES[self.precision] / ROW_BYTES)

    @property
    def is_scaled(self) -> bool:
        """True if rows are scaled by powers of two to fit 16 bits."""
        return self.precision in (HALF, HALF3)

    @property
    def has_low(self) -> bool:
        """True if each element's low part, which its 16 bits do not hold, is packed as well."""
        return self.precision == HALF3


@dataclass(frozen=True)
class InPlace:
    """An operand that TMA reads unpacked: 16-bit numbers whose rows are aligned to 16 bytes."""

    load: Load
    is_across: bool  # memory is contiguous along the result's axis, not along k
    row: int  # stride of rows in elements
    step: int  # stride of batch points in elements


def find_in_place(kernel: GemmKernel, spaces: Spaces, which: str) -> InPlace | None:
    """The operand "a" or "b" as TMA reads it; None if it must be packed."""
    expr, where = (kernel.a, spaces.a) if which == "a" else (kernel.b, spaces.b)
    expr = expr.args[0] if isinstance(expr, Apply) and expr.op == "cast" else expr
    if not isinstance(expr, Load) or expr.dtype not in ("float16", "bfloat16"):
        return None
    seen = where[expr.view]
    *batch, of_out, of_k = seen.strides if which == "a" else (*seen.strides[:-2], *seen.strides[:-3:-1])
    is_across = of_out == 1 and of_k != 1
    row, inner = (of_k, of_out) if is_across else (of_out, of_k)
    if len(batch) > 1 or inner != 1 or row <= 0 or row % 8 or seen.offset or any(b < 0 or b % 8 for b in batch):
        return None
    return InPlace(expr, is_across, row, batch[0] if batch else 0)


class PackedOperand:
    """One operand on its way into tiles, with its places in memory (`at`, `exponents_at`, `peaks_at`, in bytes) after
    `place`.

    `prepares`: it consists of parameters, so its packed form is kept between calls. `low`: bytes from the high part of
    an element to its low part."""

    def __init__(self, product: PackedProduct, which: str) -> None:
        kernel, self.product, self.which = product.kernel, product, which
        spaces = product.spaces
        self.expr, where = (kernel.a, spaces.a) if which == "a" else (kernel.b, spaces.b)
        self.out, self.size = ("m", kernel.m) if which == "a" else ("n", kernel.n)
        self.tile_rows = product.tile_m if which == "a" else product.tile_n
        self.tile: Tile = strided_operand(kernel, spaces, which, Tiling())
        batch_dims = len(spaces.batch_sizes)
        self.is_batched = any(any(view.strides[:batch_dims]) for view in where.values())
        self.padded = math.ceil(self.size / self.tile_rows) * self.tile_rows
        self.rows = self.padded * (product.batch if self.is_batched else 1)
        self.low = self.rows * product.steps * ROW_BYTES  # bytes from the high part of an element to its low part
        self.bytes = self.low * (2 if product.has_low else 1)
        self.at = self.exponents_at = self.peaks_at = 0
        found = find_in_place(kernel, spaces, which)
        self.place_now = found if found and found.load.dtype == product.precision else None
        self.map = self._map(self.place_now) if self.place_now else None
        is_constant = kernel.constant_a if which == "a" else kernel.constant_b
        reads = [leaf.buffer for leaf in leaves([self.expr]) if not isinstance(leaf, Iota)]
        self.prepares = is_constant and bool(reads) and all(_is_parameter(product.plan, name) for name in reads)

    @property
    def is_across(self) -> bool:
        """True if each row of a tile in shared memory holds one k; only for elements of 16 bits."""
        if self.place_now is not None:
            return self.place_now.is_across
        return not self.tile.along_k and SIZES[self.product.precision] == 2

    def _map(self, found: InPlace) -> TensorMap:
        """The tensor map of an operand that TMA reads unpacked."""
        k, rows, wide = self.product.kernel.k, self.tile_rows, ROW_BYTES // 2
        batch = self.product.batch if self.is_batched else 1
        sizes, box = ((self.size, k), (wide, wide)) if found.is_across else ((k, self.size), (wide, rows))
        strides = (2 * found.row, 2 * (found.step or found.row * sizes[1]))
        return TensorMap(found.load.buffer, found.load.dtype, (*sizes, batch), strides, (*box, 1))

    @property
    def is_long(self) -> bool:
        """True if rows along k are too long for a block's registers."""
        return self.tile.along_k and self.product.steps * 8 > _THREADS * _MOST_HELD

    @property
    def parts(self) -> int:
        """Number of parts of a row whose largest elements are found separately."""
        return math.ceil(self.product.steps * 8 / _LONG) if self.is_long else self.product.steps

    def memory(self, offset: int) -> str:
        """The launch argument for this operand's memory, `offset` bytes from its begin."""
        return cuda_launch.prepared_argument(offset) if self.prepares else cuda_launch.workspace_argument(offset)

    def place(self, begin: int) -> int:
        """Reserves memory from byte `begin` and returns the byte behind it; `begin` itself if TMA reads the operand
        unpacked."""
        if self.map:
            return begin
        self.at = begin
        self.exponents_at = begin + self.bytes
        self.peaks_at = self.exponents_at + (round_up_bytes(4 * self.rows) if self.product.is_scaled else 0)
        needs_peaks = self.product.is_scaled and (self.is_across or self.is_long)
        return self.peaks_at + (round_up_bytes(4 * self.rows * self.parts) if needs_peaks else 0)

    def copy(self) -> list[str]:
        """C statements that copy a step's tile into a stage; low parts of its elements follow behind it."""
        which, letter = self.which, self.which.upper()
        to = "to" if which == "a" else "to + PARTS * TileA::BYTES"
        if self.map:
            x, y, wide = f"step * {ROW_BYTES // 2}", f"(int)first_{self.out}", ROW_BYTES // 2
            if not self.is_across:
                return [f"bulk::copy_box({to}, &map_{which}, full + stage, {x}, {y}, {self.batch});"]
            boxes = f"for (int i = 0; i < {self.tile_rows // wide}; ++i) bulk::copy_box({to} + i * {wide * ROW_BYTES}, "
            return [f"{boxes}&map_{which}, full + stage, {y} + i * {wide}, {x}, {self.batch});"]
        size, place = f"Tile{letter}::BYTES", f"(place_{self.out} * STEPS + step) * Tile{letter}::BYTES"
        lines = [f"bulk::copy({to}, packed_{which} + {place}, {size}, full + stage);"]
        if self.product.has_low:
            lines.append(f"bulk::copy({to} + {size}, packed_{which} + {self.low}LL + {place}, {size}, full + stage);")
        return lines

    def describe(self, out: str) -> str:
        """C text of the wgmma descriptor of a stage's rows from `out` at depth k."""
        if self.is_across:
            return f"wgmma::described_across(from_{self.which}, {out}, k)"
        return f"Tile{self.which.upper()}::described(from_{self.which}, {out}, k)"

    @property
    def batch(self) -> str:
        """C text of the batch point whose rows the main loop reads."""
        return "batch" if self.is_batched and self.product.batch > 1 else "0"

    def _holes(self, texts: list[str]) -> dict[str, object]:
        """Values for the holes that the packing texts share; `texts` are the kernel's parameters."""
        product, kernel = self.product, self.product.kernel
        spaces = product.spaces
        place: list[str] = []
        if self.is_batched and spaces.batch_sizes:
            place = [f"const int batch = (int)(row / {self.padded});"]
            place += decompose("batch", spaces.batch_sizes, spaces.batch_names, self.tile.index)
        return {
            "WHICH": self.which,
            "PARAMETERS": ", ".join(texts),
            "KEEP_PEAK": "",
            "KERNEL": product.name,
            "PRECISION": TYPES[product.precision],
            "INDEX": self.tile.index,
            "OUT": self.out,
            **{"ROWS": self.rows, "PADDED": self.padded, "SIZE": self.size, "K": kernel.k},
            **{"STEPS": product.steps, "TILE": self.tile_rows, "VECTOR": self.tile.vector},
            "PARTS": self.parts,
            "PLACE": f"pack::place_across<{self.tile_rows}, {product.steps}>(packed_{self.which}, row, k)"
            if self.is_across
            else f"pack::place<{self.tile_rows}, {product.steps}>(packed_{self.which}, row, k / 8) + k % 8 * 2",
            **{"PACK": "pack::cut<Precision>" if product.has_low else "Precision::pack", "LOW": self.low},
            "HAS_LOW": str(product.has_low).lower(),
            "GUESS": GUESS if product.is_scaled else 0,
            "BATCH": indent(place),
            "READ": indent(self.tile.read("held"), 4),
            "READ_ONE": indent(self._read_one(), 4),
        }

    def _read_one(self) -> list[str]:
        """C statements that read one element into `held`."""
        product = self.product
        return strided_operand(product.kernel, product.spaces, self.which, Tiling(), widest=1).read("held")

    def _signature(self) -> tuple[list[str], list[str]]:
        """(C parameters, arguments) of a packing kernel: the buffers read, then the packed memory."""
        reads, _ = buffers_of(leaves([self.expr]), [])
        text, arguments = list_parameters(self.product.plan, reads, [])
        texts = [*([text] if text else []), f"unsigned char* __restrict__ packed_{self.which}"]
        return texts, [*arguments, self.memory(self.at)]

    def sources(self) -> Iterator[tuple[str, Launch]]:
        """Yields (CUDA text, launch) of the kernels that pack this operand, in order; none if TMA reads it unpacked."""
        if not self.map:
            if self.product.is_scaled and (self.is_across or self.is_long):
                yield from self._guessed()
            else:
                yield from self._along() if self.tile.along_k else self._across()

    def _along(self) -> Iterator[tuple[str, Launch]]:
        """Yields the kernel that reads each row once; a team of threads keeps it in registers."""
        texts, slots = self._signature()
        which, is_scaled = self.which, self.product.is_scaled
        pieces = self.product.steps * 8
        team = 32 if pieces <= 32 * _MOST_HELD or not is_scaled else _THREADS
        held = math.ceil(pieces / team) if is_scaled else 0
        if is_scaled:
            texts.append(f"int* __restrict__ exponents_{which}")
            slots.append(self.memory(self.exponents_at))
        holes = self._holes(texts) | {"TEAM": team, "HELD": held}
        scale = indent(self._scale(team)) if is_scaled else ""
        blocks = math.ceil(self.rows * team / _THREADS)
        yield fill_packing_text("pack_along.cu", holes | {"SCALE": scale}), self._launch("pack", blocks, slots)

    def _across(self) -> Iterator[tuple[str, Launch]]:
        """Yields the kernel for rows that are contiguous across k.

        Elements of 16 bits keep this order; for others a thread turns 128 bytes of a row along k."""
        texts, slots = self._signature()
        name, threads = ("pack_boxes.cu", 4) if self.is_across else ("pack_across.cu", 1)
        blocks = math.ceil(self.rows * self.product.steps * threads / _THREADS)
        yield fill_packing_text(name, self._holes(texts)), self._launch("pack", blocks, slots)

    def _guessed(self) -> Iterator[tuple[str, Launch]]:
        """Yields a kernel that packs all elements with the usual scale, and one that repacks rows that need another."""
        texts, slots = self._signature()
        texts, slots = [*texts, f"float* __restrict__ peaks_{self.which}"], [*slots, self.memory(self.peaks_at)]
        holes = self._holes(texts) | {"KEEP_PEAK": indent(self._peaks())}
        name = "pack_boxes.cu" if self.is_across else "pack_long.cu"
        blocks = self.rows // 64 * self.product.steps if self.is_across else self.rows * self.parts
        yield fill_packing_text(name, holes), self._launch("pack", blocks, slots)
        slots = [*slots, self.memory(self.exponents_at)]
        yield fill_packing_text("pack_repair.cu", holes), self._launch("repair", self.rows // 32, slots)

    def _peaks(self) -> list[str]:
        """C statements that keep the largest finite magnitude of each of a block's rows."""
        return [
            "__shared__ float largest[8][64];",
            "#pragma unroll",
            "for (int e = 0; e < 8; ++e) {",
            "float peak = math::maximum(pack::finite(value[0][e]), pack::finite(value[1][e]));",
            "peak = math::maximum(peak, __shfl_xor_sync(0xffffffffu, peak, 8));",
            "peak = math::maximum(peak, __shfl_xor_sync(0xffffffffu, peak, 16));",
            "if (threadIdx.x % 32 < 8) largest[warp][octet * 8 + e] = peak;",
            "}",
            "__syncthreads();",
            "if (threadIdx.x < 64) {",
            "float peak = 0.0f;",
            "#pragma unroll",
            "for (int i = 0; i < 8; ++i) peak = math::maximum(peak, largest[i][threadIdx.x]);",
            f"peaks_{self.which}[step * (long long){self.rows} + first_row + threadIdx.x] = peak;",
            "}",
        ]

    def _launch(self, what: str, blocks: int, arguments: list[str]) -> Launch:
        """A launch of `blocks` blocks of a packing kernel; `what` is "pack" or "repair"."""
        name = f"{self.product.name}_{what}_{self.which}"
        return Launch(name, (blocks, 1, 1), (_THREADS, 1, 1), tuple(arguments), prepares=self.prepares)

    def _scale(self, team: int) -> list[str]:
        """C statements that find the row's `scale` and keep its exponent for the end of the product. `team`: threads of
        a row."""
        lines = [
            "float largest = 0.0f;",
            "#pragma unroll",
            "for (int i = 0; i < HELD * PIECE; ++i)",
            "    largest = math::maximum(largest, pack::finite(value[i / PIECE][i % PIECE]));",
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


def _is_parameter(plan: Plan, name: str) -> bool:
    """True if the buffer holds a parameter, or a value made of parameters alone."""
    return plan.buffers[name].role in ("parameter", "prepared")


def round_up_bytes(size: int) -> int:
    """A size in bytes, rounded up to 1024."""
    return math.ceil(size / _ALIGN) * _ALIGN


def fill_packing_text(name: str, holes: dict[str, object]) -> str:
    """The library text cuda/contractions/`name`, with its holes filled by those of `holes` that it has."""
    text = read_library_text(f"cuda/contractions/{name}")
    return fill(text, {key: str(value) for key, value in holes.items() if f"@{key}@" in text})
