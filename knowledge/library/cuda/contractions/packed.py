"""Matrix products in CUDA from packed operands: a launch for each operand brings it into the order that wgmma reads,
then the main loop copies whole tiles with the bulk copy engine while four warps at a time multiply.

16-bit operands whose rows lie along k need no packing: the copy engine brings their tiles as wgmma reads them. For
others packing costs a read and a write and saves everything else: any expression, any strides, edges, rounding to TF32,
or scaling to 16 bits (`half`: a power of two a row, 11 significant bits as TF32 has, at twice its rate).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from foundry.knowledge.candidate import Choice
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.library.cuda import launches as cuda_launch
from foundry.knowledge.library.cuda.contractions.gemm_tiles import SPLITS
from foundry.knowledge.library.cuda.contractions.packing import (
    ROW_BYTES,
    PackedOperand,
    PackedProduct,
    aligned,
    packed_text,
)
from foundry.knowledge.library.cuda.contractions.row_tails import RowTail, tensor_lanes
from foundry.knowledge.library.cuda.contractions.splits import Partial, find_block, split_steps
from foundry.knowledge.library.cuda.contractions.tails import element_values, tail_text
from foundry.knowledge.library.cuda.contractions.tensor_tiles import DRAINED, HALF3, LABELS, TYPES
from foundry.knowledge.library.cuda.contractions.tiled import GROUP, epilogue_lines
from foundry.knowledge.library.cuda.launches import Argument, Launch, max_shared_bytes
from foundry.knowledge.library.cuda.space import (
    Space,
    body_leaves,
    buffers_of,
    identifier,
    indent,
    index_type,
    leaves,
    parameters,
    tunable,
)
from foundry.knowledge.library.file.texts import read_library_text
from foundry.knowledge.library.ir.kernels import GemmKernel, Plan, PrintedKernel, Tunable

_LEAST_DEPTH = 512  # of a part of k
# Of each thread that copies and of each that multiplies, by the number of warpgroups that multiply.
_REGISTERS = {1: (0, 255), 2: (40, 232), 3: (32, 160)}
_VALUES: dict[str, tuple[int, ...]] = {
    "tile_m": (64, 128, 256),
    "tile_n": (64, 128, 256),
    "group_m": (64, 128),
    "group_n": (64, 128, 256),
    "stages": (2, 3, 4, 5, 6),
    "splits": SPLITS,
}
_MEANING = {
    "tile_m": ("tile", "rows of a block's tile: larger reads b less often, smaller fills more multiprocessors"),
    "tile_n": ("tile", "columns of a block's tile: larger reads a less often"),
    "group_m": ("tile", "rows that a warpgroup adds up: more products per read of b, more registers"),
    "group_n": ("tile", "columns that a warpgroup adds up"),
    "stages": ("memory", "tiles in flight: more latency is hidden, more shared memory"),
    "splits": ("algorithm", "parts of k computed by different blocks and added by a second launch"),
}


@dataclass(frozen=True)
class PackedTiling:
    """A block's tile of the result, the part of it that each warpgroup adds up, the ring's stages, and parts of k."""

    tile_m: int
    tile_n: int
    group_m: int
    group_n: int
    stages: int
    splits: int = 1

    @property
    def threads(self) -> int:
        """Those of the warpgroups that multiply, and of the one that copies."""
        return self.groups * 128 + 128

    @property
    def groups(self) -> int:
        return (self.tile_m // self.group_m) * (self.tile_n // self.group_n)

    @property
    def shared_bytes(self) -> int:
        return self.stages * ((self.tile_m + self.tile_n) * ROW_BYTES + 16)

    def legal(self, precision: str, arch: str) -> bool:
        if self.tile_m % self.group_m or self.tile_n % self.group_n or self.groups not in _REGISTERS:
            return False
        sums = self.group_m * self.group_n // 128 * (2 if precision == HALF3 else 1)
        return sums + 64 <= _REGISTERS[self.groups][1] and self.shared_bytes <= max_shared_bytes(arch)


# With the share of the arithmetic rate that a tile of this shape reaches by itself.
_SHAPES = (
    (PackedTiling(128, 256, 64, 256, 4), 1.0),
    (PackedTiling(128, 128, 64, 128, 6), 0.85),
    (PackedTiling(64, 256, 64, 256, 4), 0.7),
    (PackedTiling(128, 64, 64, 64, 6), 0.6),
    (PackedTiling(64, 64, 64, 64, 6), 0.45),
)


def _default(kernel: GemmKernel, precision: str, device: Device) -> PackedTiling:
    """The tiling with the least estimated time: waves of tiles, each at its own rate, plus the traffic of a split."""
    batch = math.prod(kernel.batch)
    costs = {}
    for shape, rate in _SHAPES:
        for splits in SPLITS:
            tiling, depth = replace(shape, splits=splits), math.ceil(kernel.k / splits)
            if not tiling.legal(precision, device.arch) or (splits > 1 and depth < _LEAST_DEPTH):
                continue
            tiles = batch * math.ceil(kernel.m / tiling.tile_m) * math.ceil(kernel.n / tiling.tile_n) * splits
            work = math.ceil(tiles / device.cores) * tiling.tile_m * tiling.tile_n * depth / rate
            # A partial sum is written and read; products are about thirty times faster than on the ordinary units.
            moved = (1e3 * batch * kernel.m * kernel.n * splits / device.cores + 8e6) if splits > 1 else 0.0
            costs[tiling] = work + moved
    return min(costs, key=lambda tiling: costs[tiling])


def choose_packed(
    kernel: GemmKernel, precision: str, device: Device, choices: dict[str, Choice]
) -> tuple[PackedTiling, tuple[Tunable, ...]]:
    """The chosen tiling, kept legal, and its tunables: for each, the values legal beside the others' present ones."""
    default = _default(kernel, precision, device)
    wanted = {name: int(value) for name, value in choices.items() if value in _VALUES.get(name, ())}
    tiling = replace(default, **wanted)
    if not tiling.legal(precision, device.arch) or (tiling.splits > 1 and kernel.k // tiling.splits < 64):
        tiling = default
    tunables = []
    for name, values in _VALUES.items():
        legal = [value for value in values if replace(tiling, **{name: value}).legal(precision, device.arch)]
        if name == "splits":
            legal = [value for value in legal if value == 1 or kernel.k // value >= 64]
        legal = sorted({*legal, getattr(default, name)})
        aspect, meaning = _MEANING[name]
        tunables.append(tunable(name, legal, getattr(default, name), aspect, meaning))
    return tiling, tuple(tunables)


class _Printer:
    def __init__(
        self, kernel: GemmKernel, plan: Plan, device: Device, choices: dict[str, Choice], precision: str
    ) -> None:
        self.kernel, self.plan, self.precision = kernel, plan, precision
        self.tiling, self.tunables = choose_packed(kernel, precision, device, choices)
        name = cuda_launch.KERNEL_PREFIX + identifier(kernel.name)
        self.product = PackedProduct(name, kernel, plan, precision, self.tiling.tile_m, self.tiling.tile_n)
        self.tiles = math.ceil(kernel.m / self.tiling.tile_m), math.ceil(kernel.n / self.tiling.tile_n)
        self.operands = {which: PackedOperand(self.product, which) for which in ("a", "b")}
        self.workspace_bytes = self.prepared_bytes = 0
        for operand in self.operands.values():
            if operand.prepares:
                self.prepared_bytes = operand.place(self.prepared_bytes)
            else:
                self.workspace_bytes = operand.place(self.workspace_bytes)
        spaces = self.product.spaces
        sizes, names = (*spaces.batch_sizes, kernel.m, kernel.n), (*spaces.batch_names, "m", "n")
        self.out = Space(sizes, names, spaces.out, index_type(sizes, spaces.out.values()))
        self.partial = Partial(kernel, plan, name, "float", self.out, self.tiling.splits, self.workspace_bytes)
        if self.tiling.splits > 1:
            self.workspace_bytes += aligned(self.partial.bytes)
        self.tail: RowTail | None = None
        if kernel.tail:
            if self.tiling.splits > 1:
                raise CannotLower("parts of k have no whole elements to reduce")
            tile = self.tiling.tile_m, self.tiling.tile_n
            lanes = tensor_lanes(kernel, self.tiling.tile_n, self.tiling.group_n)
            self.tail = RowTail(kernel, plan, name, self.out, lanes, tile, self.workspace_bytes)
            self.workspace_bytes = self.tail.end

    def _epilogue(self) -> tuple[list[str], list[str]]:
        """(what is known once a row, the stores at (m, n .. n + 3))."""
        kernel, tiling = self.kernel, self.tiling
        tests = [f"m < {kernel.m}"] if kernel.m % tiling.tile_m else []
        tests += [f"n < {kernel.n}"] if kernel.n % tiling.tile_n else []
        guard, element = " && ".join(tests), f"n + j < {kernel.n}" if kernel.n % 4 else ""
        acc, of_row, of_column = "acc[i][h * 4 + j]", [], []
        if self.product.is_scaled:
            acc = f"pack::scaled({acc}, row_scale, pack::power(column_exponent.at[j]))"
            of_row = ["const pack::Scale row_scale = pack::scale_of(exponents_a[place_m * BM + (int)(m - first_m)]);"]
            at = "exponents_b + place_n * BN + (int)(n - first_n)"
            of_column = [f"const Vec<int, 4> column_exponent = load_vec<4>({at});"]
        if tiling.splits > 1:
            return of_row, [*of_column, *self.partial.store(acc, guard, element)]
        if self.tail:
            body = self.tail.epilogue(kernel.stores, acc, guard, element)
            return of_row, [*of_column, *body]
        return of_row, [*of_column, *epilogue_lines(self.out, kernel.stores, self.plan, acc, 4, guard, element)]

    def _arguments(self) -> tuple[list[str], list[Argument]]:
        """Parameters of the main loop, and its arguments."""
        texts: list[str] = []
        slots: list[Argument] = []
        for which, operand in self.operands.items():
            if operand.map:
                texts.append(f"const __grid_constant__ bulk::Map map_{which}")
                slots.append(operand.map)
            else:
                texts.append(f"const unsigned char* __restrict__ packed_{which}")
                slots.append(operand.memory(operand.at))
            if self.product.is_scaled:
                texts.append(f"const int* __restrict__ exponents_{which}")
                slots.append(operand.memory(operand.exponents_at))
        if self.tiling.splits > 1:
            return [*texts, self.partial.parameter], [*slots, self.partial.argument]
        found = [*body_leaves(self.kernel.stores), *leaves(element_values(self.kernel.tail))]
        reads, writes = buffers_of(found, self.kernel.stores)
        signature, arguments = parameters(self.plan, reads, writes)
        more = self.tail.slots() if self.tail else []
        texts += [text for text in (signature, *(text for text, _ in more)) if text]
        return texts, [*slots, *arguments, *(slot for _, slot in more)]

    def _main(self) -> tuple[str, Launch]:
        texts, slots = self._arguments()
        of_row, epilogue = self._epilogue()
        tiling, product, spaces = self.tiling, self.product, self.product.spaces
        own, most = _REGISTERS[tiling.groups]
        across = ", ".join(str(operand.is_across).lower() for operand in self.operands.values())
        tiles = self.tiles[0] * self.tiles[1]
        steps = product.steps * (3 if product.has_low else 1)
        first, end = split_steps(steps, tiling.splits, self.kernel)
        holes: dict[str, object] = {
            "NAME": product.name,
            "PARAMETERS": ", ".join(texts),
            "PRECISION": TYPES[self.precision],
            "INDEX": self.out.index,
            **{"BM": tiling.tile_m, "BN": tiling.tile_n, "GM": tiling.group_m, "GN": tiling.group_n},
            **{"THREADS": tiling.threads, "STAGES": tiling.stages, "STEPS": product.steps, "GROUP": GROUP},
            **{"TILES_M": self.tiles[0], "TILES_N": self.tiles[1]},
            **{"FIRST_STEP": first, "END_STEP": end, "DRAINED": DRAINED if product.has_low else 0},
            **{"BATCH_A": self.operands["a"].batch, "BATCH_B": self.operands["b"].batch},
            **{"COPY_A": self.operands["a"].copy(), "COPY_B": self.operands["b"].copy()},
            "MULTIPLY": f"wgmma::Across<Precision, {across}>::multiply" if "true" in across else "Precision::multiply",
            "DESCRIBED_A": self.operands["a"].describe("group_m + i * 64"),
            "DESCRIBED_B": self.operands["b"].describe("warp_n + n"),
            "BATCH": indent(find_block(tiles, tiling.splits, spaces.batch_sizes, spaces.batch_names, self.out.index)),
            "GIVE_UP": f"        wgmma::give_up<{own}>();" if own else "",
            "CLAIM": f"    wgmma::claim<{most}>();" if own else "",
            "ROW_SCALE": indent(of_row, 2),
            "EPILOGUE": indent(epilogue, 3),
            "AFTER_ROW": indent(self.tail.after_row() if self.tail else (), 2),
        }
        grid, block = (tiles * tiling.splits * product.batch, 1, 1), (tiling.threads, 1, 1)
        return packed_text("gemm_packed.cu", holes), Launch(
            product.name, grid, block, tuple(slots), tiling.shared_bytes
        )

    def print(self) -> PrintedKernel:
        parts = [item for operand in self.operands.values() for item in operand.sources()]
        parts.append(self._main())
        if self.tiling.splits > 1:
            parts.append(self.partial.sum())
        if self.tail:
            parts += self.tail.launches()
        kind = "tf32" if self.precision == "tf32" else "sixteen"
        shared = ["mma", f"mma_{kind}", "wgmma", f"wgmma_{kind}", "bulk", "pack"]
        if any(operand.is_across for operand in self.operands.values()):
            shared.append("wgmma_across")
        texts = [read_library_text(f"cuda/contractions/{name}.cuh") for name in shared]
        return PrintedKernel(
            functions="\n".join(text for text, _ in parts),
            call=cuda_launch.encode([launch for _, launch in parts]),
            template="gemm",
            choices=asdict(self.tiling),
            tunables=self.tunables,
            d_mem=3,
            d_algo=2 if self.tiling.splits > 1 else 1 if len(self.kernel.ops) > 1 else 0,
            d_sync=3 if self.tiling.splits > 1 else 2,
            workspace_bytes=self.workspace_bytes,
            prepared_bytes=self.prepared_bytes,
            launches=len(parts),
            labels=LABELS.get(self.precision, ()),
            arch_feature="a",
            shared=(*texts, *([tail_text()] if self.tail else [])),
        )


def print_packed(
    kernel: GemmKernel, plan: Plan, device: Device, choices: dict[str, Choice], precision: str
) -> PrintedKernel:
    return _Printer(kernel, plan, device, choices, precision).print()
