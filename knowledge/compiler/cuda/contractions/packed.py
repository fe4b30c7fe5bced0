"""Matrix products in CUDA from packed operands. A launch for each operand brings it into the order that wgmma reads;
the main loop copies whole tiles by TMA while four warps at a time multiply.

16-bit operands whose rows run along k need no packing: TMA brings their tiles as wgmma reads them. For others packing
costs a read and a write and saves everything else: any expression, any strides, edges, rounding to TF32, scaling to 16
bits. `half` scales each row by a power of two: 11 significant bits as TF32 has, at twice its rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda import launches as cuda_launch
from foundry.knowledge.compiler.cuda.contractions.gemm_tiles import SPLITS
from foundry.knowledge.compiler.cuda.contractions.operands import out_space, spaces_of
from foundry.knowledge.compiler.cuda.contractions.packing import (
    ROW_BYTES,
    PackedOperand,
    PackedProduct,
    fill_packing_text,
    round_up_bytes,
)
from foundry.knowledge.compiler.cuda.contractions.row_tails import RowTail, tensor_lanes
from foundry.knowledge.compiler.cuda.contractions.splits import Partial, find_block, split_steps
from foundry.knowledge.compiler.cuda.contractions.tails import element_values, tail_text
from foundry.knowledge.compiler.cuda.contractions.tensor_tiles import HALF, HALF3, LABELS, TYPES
from foundry.knowledge.compiler.cuda.contractions.tiled import GROUP, epilogue_lines
from foundry.knowledge.compiler.cuda.dialect import element_type
from foundry.knowledge.compiler.cuda.launches import Argument, Launch, max_shared_bytes, symbol_of
from foundry.knowledge.compiler.cuda.space import (
    Space,
    body_leaves,
    indent,
    make_tunable,
    signature_of,
)
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.kernels import GemmKernel, Plan, PrintedKernel, Tunable
from foundry.knowledge.compiler.ir.views import leaves
from foundry.knowledge.compiler.ir.weight import weight_of
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import ITEM_BYTES

_LEAST_DEPTH = 512  # fewest elements of k in a part
# (registers of a copying thread, of a multiplying thread), by the number of warpgroups that multiply.
_REGISTERS = {1: (0, 255), 2: (40, 232), 3: (32, 160)}
_VALUES: dict[str, tuple[int, ...]] = {
    "tile_m": (64, 128, 256),
    "tile_n": (64, 128, 256),
    "group_m": (64, 128),
    "group_n": (64, 128, 256),
    "stages": (2, 3, 4, 5, 6),
    "splits": SPLITS,
    "resident": (1, 2, 3, 4),
    "stays": (0, 1, 2),
}
_MEANING = {
    "tile_m": ("tile", "rows of a block's tile: larger reads b less often, smaller fills more multiprocessors"),
    "tile_n": ("tile", "columns of a block's tile: larger reads a less often"),
    "group_m": ("tile", "rows that a warpgroup adds up: more products per read of b, more registers"),
    "group_n": ("tile", "columns that a warpgroup adds up"),
    "stages": ("memory", "tiles in flight: more latency is hidden, more shared memory"),
    "splits": ("algorithm", "parts of k computed by different blocks and added by a second launch"),
    "resident": ("parallel", "blocks of a multiprocessor: some store while others multiply, with smaller tiles"),
    "stays": (
        "algorithm",
        "tiles whose work overlaps in a block that stays: 1 stores one while it multiplies the next, with 2 the "
        "operands of the next arrive meanwhile, 0 has a block for each",
    ),
}
_MULTIPROCESSOR_BYTES = 228 << 10  # shared memory; each block takes 1 KB more than it asks for
_SLABS = (32, 64, 128)
_SHORTEST, _SHORT = 128, 256  # longest k for which blocks stay: one to a multiprocessor, and two


@dataclass(frozen=True)
class PackedTiling:
    """A block's tile of the result, the part of it that each warpgroup adds up, the ring's stages, and parts of k.

    `item`: bytes of an element if rows of the result may leave through shared memory, else 0."""

    tile_m: int
    tile_n: int
    group_m: int
    group_n: int
    stages: int
    splits: int = 1
    resident: int = 1
    stays: int = 0
    item: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block: warpgroups that multiply, and one that copies (a warp if several blocks are resident)."""
        return self.groups * 128 + (128 if self.resident == 1 else 32)

    @property
    def registers(self) -> tuple[int, int]:
        """(registers of a copying thread, of a multiplying thread); 0 leaves them as launched."""
        if self.resident == 1:
            return _REGISTERS[self.groups]
        return 0, min(255, 65536 // (self.threads * self.resident) // 8 * 8)

    @property
    def groups(self) -> int:
        """Number of warpgroups that multiply."""
        return (self.tile_m // self.group_m) * (self.tile_n // self.group_n)

    @property
    def is_slabbed(self) -> bool:
        """True if rows of the result leave through shared memory."""
        return self.stays == 1

    def ring_bytes(self, precision: str) -> int:
        """Bytes of shared memory for all stages and their barriers."""
        parts = 2 if precision == HALF3 else 1  # high and low part of an element
        return self.stages * ((self.tile_m + self.tile_n) * ROW_BYTES * parts + 16)

    def slab(self, precision: str) -> int:
        """Columns of a warp's 16 rows that leave through shared memory together; 0 if there is no room or no need."""
        room = _MULTIPROCESSOR_BYTES // self.resident - 1024 - self.ring_bytes(precision)
        fitting = [n for n in _SLABS if n <= self.group_n and self.groups * 4 * slab_bytes(n, self.item) <= room]
        return max(fitting, default=0) if self.item else 0

    def shared_bytes(self, precision: str) -> int:
        """Dynamic shared memory of a block in bytes."""
        ring = self.ring_bytes(precision)
        return ring + (self.groups * 4 * slab_bytes(self.slab(precision), self.item) if self.is_slabbed else 0)

    def is_legal(self, precision: str, arch: str) -> bool:
        """True if warpgroups divide the tile, and a thread's registers and a block's shared memory suffice."""
        if self.tile_m % self.group_m or self.tile_n % self.group_n or self.groups not in _REGISTERS:
            return False
        if self.stays and (self.splits > 1 or (self.is_slabbed and not self.slab(precision))):
            return False
        sums = self.group_m * self.group_n // 128 * (2 if precision == HALF3 else 1)
        if sums + (64 if self.resident == 1 else 40) > self.registers[1]:
            return False
        most = min(max_shared_bytes(arch), _MULTIPROCESSOR_BYTES // self.resident - 1024)
        return self.shared_bytes(precision) <= most


def slab_bytes(columns: int, item: int) -> int:
    """Bytes of shared memory for a warp's 16 rows of `columns` elements of `item` bytes.

    Rows are padded by eight elements, and the last eight rows begin 64 bytes later, to avoid bank conflicts."""
    return 16 * (columns + 8) * item + 64


@dataclass(frozen=True)
class _Shape:
    """A tiling with its estimated speed: `rate` is the share of the arithmetic rate that its main loop reaches.

    The rest is what a tile costs beside its k, in steps of k at the full rate. `besides`: waiting for the first
    operands and storing the elements. `slabbed`: the same if they leave through shared memory; 0 if they never do.
    `curve`: each exponential of an element."""

    tiling: PackedTiling
    rate: float
    besides: int = 0
    slabbed: int = 0
    curve: int = 0


_SHAPES = (
    _Shape(PackedTiling(128, 256, 64, 256, 4), 1.0),
    _Shape(PackedTiling(128, 128, 64, 128, 6), 0.85),
    _Shape(PackedTiling(64, 256, 64, 256, 4), 0.7),
    _Shape(PackedTiling(128, 64, 64, 64, 6), 0.6),
    _Shape(PackedTiling(64, 64, 64, 64, 6), 0.45),
)
# For 16-bit operands and results: fitted to seven shapes on an H200 (benchmarks/h200/README.md).
_SIXTEEN = (
    _Shape(PackedTiling(128, 256, 64, 256, 4, stays=2), 1.0, 660, slabbed=390, curve=440),
    _Shape(PackedTiling(256, 128, 128, 128, 4, stays=2), 1.0, 660, slabbed=390, curve=440),
    _Shape(PackedTiling(128, 128, 64, 128, 3, resident=2), 0.83, 385, curve=110),
    _Shape(PackedTiling(128, 128, 64, 128, 6), 0.97, 660, slabbed=440, curve=440),
    _Shape(PackedTiling(64, 256, 64, 256, 4), 0.7, 660, curve=440),
    _Shape(PackedTiling(128, 64, 64, 64, 6), 0.6, 660, curve=440),
    _Shape(PackedTiling(64, 64, 64, 64, 6), 0.45, 660, curve=440),
)


def _default_tiling(kernel: GemmKernel, precision: str, device: Device, item: int) -> PackedTiling:
    """The tiling with the least estimated time: waves of tiles, each at its own rate, plus the traffic of a split."""
    batch = math.prod(kernel.batch)
    space = (*kernel.batch, *kernel.m_shape, *kernel.n_shape)
    curves = sum(weight_of(store.value, space).expensive for store in kernel.stores)
    costs = {}
    for shape in _SIXTEEN if precision in ("float16", "bfloat16") and not kernel.tail else _SHAPES:
        for splits in SPLITS:
            tiling, depth = _fit_stages(shape, splits, item, precision, device.arch), math.ceil(kernel.k / splits)
            if not tiling.is_legal(precision, device.arch) or (splits > 1 and depth < _LEAST_DEPTH):
                continue
            tiles = batch * math.ceil(kernel.m / tiling.tile_m) * math.ceil(kernel.n / tiling.tile_n) * splits
            waves = math.ceil(tiles / (device.cores * tiling.resident)) * tiling.resident
            besides = (shape.slabbed if tiling.is_slabbed else shape.besides) + shape.curve * curves
            work = waves * tiling.tile_m * tiling.tile_n * (depth / shape.rate + besides)
            # A partial sum is written and read; products are about thirty times faster than on the ordinary units.
            moved = (1e3 * batch * kernel.m * kernel.n * splits / device.cores + 8e6) if splits > 1 else 0.0
            costs[tiling] = work + moved
    return min(costs, key=lambda tiling: costs[tiling])


def _fit_stages(shape: _Shape, splits: int, item: int, precision: str, arch: str) -> PackedTiling:
    """The shape's tiling with as many stages as there is room for, up to its own; it may still be illegal."""
    stays = 0 if splits > 1 else 1 if item and shape.slabbed else shape.tiling.stays
    tiling = replace(shape.tiling, splits=splits, stays=stays, item=item)
    found = [replace(tiling, stages=stages) for stages in range(tiling.stages, 1, -1)]
    return next((tiling for tiling in found if tiling.is_legal(precision, arch)), found[0])


def _make_persistent(tiling: PackedTiling, kernel: GemmKernel, device: Device) -> PackedTiling:
    """The tiling with persistent blocks if k is so short that stores take longer than products; else unchanged.

    Measured on an H200."""
    tiles = math.prod(kernel.batch) * math.ceil(kernel.m / tiling.tile_m) * math.ceil(kernel.n / tiling.tile_n)
    is_usual = (tiling.tile_m, tiling.tile_n, tiling.splits) == (128, 256, 1)
    if not is_usual or kernel.k > _SHORT or tiles < 4 * device.cores:
        return tiling
    if kernel.k <= _SHORTEST:
        return replace(tiling, stages=2, stays=1)
    return replace(tiling, tile_n=128, group_n=128, stages=2, resident=2, stays=1)


def choose_packed(
    kernel: GemmKernel, precision: str, device: Device, choices: dict[str, Choice], *, item: int
) -> tuple[PackedTiling, tuple[Tunable, ...]]:
    """(tiling, its tunables). Choices that are not legal together give way to the default tiling. A tunable offers the
    values that are legal beside the others' present ones.

    `item`: bytes of an element if rows of the result may leave through shared memory, else 0."""
    default = _default_tiling(kernel, precision, device, item)
    if item == 4 and precision == HALF:
        default = _make_persistent(default, kernel, device)
    ways = (0, *((1,) if item else ()), *(() if kernel.tail else (2,)))
    offered = {**_VALUES, "stays": ways}
    wanted = {name: int(value) for name, value in choices.items() if value in offered.get(name, ())}
    tiling = replace(default, **wanted)
    if not tiling.is_legal(precision, device.arch) or (tiling.splits > 1 and kernel.k // tiling.splits < 64):
        tiling = default
    tunables = []
    for name, values in offered.items():
        legal = [value for value in values if replace(tiling, **{name: value}).is_legal(precision, device.arch)]
        if name == "splits":
            legal = [value for value in legal if value == 1 or kernel.k // value >= 64]
        legal = sorted({*legal, getattr(default, name)})
        aspect, meaning = _MEANING[name]
        tunables.append(make_tunable(name, legal, getattr(default, name), aspect, meaning))
    return tiling, tuple(tunables)


def leaving_item(kernel: GemmKernel, plan: Plan, out: Space) -> int:
    """Bytes of an element of the result if its rows can leave through shared memory, else 0.

    That needs one store, no tail, and rows aligned to 16 bytes that consist of whole slabs."""
    if kernel.tail or len(kernel.stores) != 1 or (kernel.n_sizes and out.innermost % _SLABS[-1]):
        return 0
    (store,) = kernel.stores
    dtype = plan.buffers[store.buffer].dtype
    fits = dtype in ("float32", "float16", "bfloat16") and out.is_aligned(store.view, 16 // ITEM_BYTES[dtype])
    return ITEM_BYTES[dtype] if fits else 0


class _Printer:
    """Prints a product of packed operands. Raises CannotLower for a tail if k is split."""

    def __init__(
        self, kernel: GemmKernel, plan: Plan, device: Device, choices: dict[str, Choice], precision: str
    ) -> None:
        self.kernel, self.plan, self.precision, self.cores = kernel, plan, precision, device.cores
        self.out = out_space(kernel, spaces_of(kernel))
        self.tiling, self.tunables = choose_packed(
            kernel, precision, device, choices, item=leaving_item(kernel, plan, self.out)
        )
        name = symbol_of(kernel)
        self.product = PackedProduct(
            name, kernel, plan, precision=precision, tile_m=self.tiling.tile_m, tile_n=self.tiling.tile_n
        )
        self.tiles = math.ceil(kernel.m / self.tiling.tile_m), math.ceil(kernel.n / self.tiling.tile_n)
        self.operands = {which: PackedOperand(self.product, which) for which in ("a", "b")}
        self.workspace_bytes = self.prepared_bytes = 0
        for operand in self.operands.values():
            if operand.prepares:
                self.prepared_bytes = operand.place(self.prepared_bytes)
            else:
                self.workspace_bytes = operand.place(self.workspace_bytes)
        self.partial = Partial(
            kernel, plan, name, type="float", out=self.out, splits=self.tiling.splits, memory=self.workspace_bytes
        )
        if self.tiling.splits > 1:
            self.workspace_bytes += round_up_bytes(self.partial.bytes)
        self.tail: RowTail | None = None
        if kernel.tail:
            if self.tiling.splits > 1:
                raise CannotLower("parts of k have no whole elements to reduce")
            tile = self.tiling.tile_m, self.tiling.tile_n
            lanes = tensor_lanes(kernel, self.tiling.tile_n, self.tiling.group_n)
            self.tail = RowTail(kernel, plan, name, out=self.out, lanes=lanes, tile=tile, memory=self.workspace_bytes)
            self.workspace_bytes = self.tail.end

    def _epilogue(self) -> tuple[list[str], list[str]]:
        """(C statements once a row, C statements that store at (m, n .. n + 3))."""
        kernel, tiling = self.kernel, self.tiling
        tests = [f"m < {kernel.m}"] if kernel.m % tiling.tile_m else []
        tests += [f"n < {kernel.n}"] if kernel.n % tiling.tile_n else []
        guard, element = " && ".join(tests), f"n + j < {kernel.n}" if kernel.n % 4 else ""
        acc, of_row, of_column = "acc[i][h * 4 + j]", [], []
        if self.product.is_scaled and not tiling.is_slabbed:
            acc = f"pack::scaled({acc}, row_scale, pack::power(column_exponent.at[j]))"
            of_row = ["const pack::Scale row_scale = pack::scale_of(exponents_a[place_m * BM + (int)(m - first_m)]);"]
            at = "exponents_b + place_n * BN + (int)(n - first_n)"
            of_column = [f"const Vec<int, 4> column_exponent = load_vec<4>({at});"]
        if tiling.splits > 1:
            return of_row, [*of_column, *self.partial.store(acc, guard, element)]
        if self.tail:
            body = self.tail.epilogue(kernel.stores, acc, guard, element)
            return of_row, [*of_column, *body]
        to = f"slab + h % {tiling.slab(self.precision) // 8} * 8" if tiling.is_slabbed else ""
        body = epilogue_lines(
            self.out, kernel.stores, self.plan, acc=acc, vector=4, guard=guard, element_guard=element, to=to
        )
        return of_row, [*of_column, *body]

    def _scale(self) -> list[str]:
        """C statements that remove the operands' scales from the sums before these leave; [] if that happens elsewhere.

        If no exponent of a warp's rows and columns is extreme, one multiplication does it: with small k, the cost of an
        element limits the product."""
        if not (self.product.is_scaled and self.tiling.is_slabbed):
            return []
        each = ["#pragma unroll", "for (int i = 0; i < GM / 64; ++i)", "#pragma unroll"]
        each += ["for (int h = 0; h < GN / 8; ++h) {", "const Vec<int, 4> of_column = load_vec<4>(columns + h * 8);"]
        each += ["#pragma unroll", "for (int j = 0; j < 4; ++j) {"]
        element = "acc[i][h * 4 + j]"
        return [
            "int of_row[GM / 64];",
            "bool is_plain = true;",
            "#pragma unroll",
            "for (int i = 0; i < GM / 64; ++i) {",
            "of_row[i] = exponents_a[place_m * BM + warp_m + i * 64 + lane / 4 + lane % 2 * 8];",
            "is_plain &= pack::is_plain(of_row[i]);",
            "}",
            "const int* const all_columns = exponents_b + place_n * BN + warp_n;",
            "#pragma unroll",
            "for (int n = lane; n < GN; n += 32) is_plain &= pack::is_plain(all_columns[n]);",
            "const int* const columns = all_columns + lane % 4 / 2 * 4;",
            "if (__all_sync(0xffffffffu, is_plain)) {",
            *each,
            f"{element} *= pack::power_of(of_row[i], of_column.at[j]);",
            *("}", "}"),
            "} else {",
            *each,
            f"{element} = pack::scaled({element}, of_row[i] + of_column.at[j]);",
            *("}", "}", "}"),
        ]

    def _way_out(self) -> dict[str, object]:
        """Holes of the text that stores rows through shared memory; empty if rows do not leave that way.

        Lanes of a warp write a part of 16 rows, and one lane a row lets TMA store it. The warp goes on, but waits for
        that copy before it writes there again."""
        tiling, kernel = self.tiling, self.kernel
        if not tiling.is_slabbed:
            return {"ABOUT": "", "SLAB": "", "BEFORE_FOUR": "", "AFTER_FOUR": "", "LAST": ""}
        slab, (store,) = tiling.slab(self.precision), kernel.stores
        row, item = slab + 8, tiling.item
        kind, gap, part = (
            element_type(self.plan.buffers[store.buffer].dtype),
            64 // item,
            slab_bytes(slab, item) // item,
        )
        apart = replace(self.out, names=(*self.out.names[:-2], "row_m", "first"))
        tests = ["lane < 16"]
        tests += [f"row_m < {kernel.m}"] if kernel.m % tiling.tile_m else []
        columns = str(slab)
        if kernel.n % tiling.tile_n:
            tests.append(f"first < {kernel.n}")
            columns = f"(int)math::minimum(first + {columns}, ({self.out.index}){kernel.n}) - (int)first"
        begin = [
            f"{kind}* const rows = reinterpret_cast<{kind}*>(empty + STAGES) + warp * {part};",
            f"{kind}* const slab = rows + (lane / 4 + lane % 2 * 8) * {row} + lane % 2 * {gap} + lane % 4 / 2 * 4;",
        ]
        before = [f"if (h % {slab // 8} == 0) {{", "bulk::wait_read<0>();", "__syncwarp();", "}"]
        after = [
            f"if (h % {slab // 8} == {slab // 8 - 1}) {{",
            "bulk::show();",
            "__syncwarp();",
            f"const {self.out.index} row_m = first_m + warp_m + i * 64 + lane;",
            f"const {self.out.index} first = first_n + warp_n + h / {slab // 8} * {slab};",
            f"if ({' && '.join(tests)})",
            f"    bulk::store(b_{store.buffer} + {apart.offset(store.view)}, rows + lane * {row} + lane / 8 * {gap},",
            f"                ({columns}) * {item});",
            "bulk::commit();",
            "}",
        ]
        return {
            "ABOUT": " A block stays: rows of a tile leave\n// through shared memory while it multiplies the next one.",
            "SLAB": indent(begin),
            **{"BEFORE_FOUR": indent(before, 4), "AFTER_FOUR": indent(after, 4)},
            "LAST": "    bulk::wait_read<0>();",
        }

    def _place(self, tiles: int, first: str, end: str) -> list[str]:
        """C statements that find the item's tile, batch point and steps, where `first` and `end` are C texts of the
        latter.

        Columns of GROUP tiles are walked together, so that neighbouring blocks share tiles of both operands in L2."""
        tiles_m, tiles_n = self.tiles
        spaces, index = self.product.spaces, self.out.index
        return [
            f"const int tile = item % {tiles}, group = tile / {GROUP * tiles_n}, rest = tile % {GROUP * tiles_n};",
            f"const int height = {tiles_m} - group * {GROUP} < {GROUP} ? {tiles_m} - group * {GROUP} : {GROUP};",
            f"const int tile_m = group * {GROUP} + rest % height, tile_n = rest / height;",
            f"const {index} first_m = ({index})tile_m * BM, first_n = ({index})tile_n * BN;",
            *find_block(tiles, self.tiling.splits, spaces.batch_sizes, spaces.batch_names, index, item="item"),
            f"const long long place_m = (long long){self.operands['a'].batch} * {tiles_m} + tile_m;",
            f"const long long place_n = (long long){self.operands['b'].batch} * {tiles_n} + tile_n;",
            f"const int first_step = {first}, end_step = {end};",
        ]

    def _arguments(self) -> tuple[list[str], list[Argument]]:
        """(C parameters of the main loop, its arguments)."""
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
        signature, arguments = signature_of(self.plan, found, self.kernel.stores)
        more = self.tail.slots() if self.tail else []
        texts += [text for text in (signature, *(text for text, _ in more)) if text]
        return texts, [*slots, *arguments, *(slot for _, slot in more)]

    def _main(self) -> tuple[str, Launch]:
        """(CUDA text, launch) of the main loop."""
        texts, slots = self._arguments()
        of_row, epilogue = self._epilogue()
        tiling, product = self.tiling, self.product
        own, most = tiling.registers
        across = ", ".join(str(operand.is_across).lower() for operand in self.operands.values())
        tiles = self.tiles[0] * self.tiles[1]
        first, end = split_steps(product.steps, tiling.splits, self.kernel)
        items = tiles * tiling.splits * product.batch
        holes: dict[str, object] = {
            "NAME": product.name,
            "PARAMETERS": ", ".join(texts),
            "PRECISION": TYPES[self.precision],
            "INDEX": self.out.index,
            **{"BM": tiling.tile_m, "BN": tiling.tile_n, "GM": tiling.group_m, "GN": tiling.group_n},
            **{"THREADS": tiling.threads, "STAGES": tiling.stages, "STEPS": product.steps},
            **{"RESIDENT": tiling.resident, "ITEMS": items, "STAYS": str(bool(tiling.stays)).lower()},
            "NEXT": "(int)gridDim.x" if tiling.stays else "ITEMS",
            "PRODUCTS": 3 if product.has_low else 1,
            **{"COPY_A": indent(self.operands["a"].copy(), 5), "COPY_B": indent(self.operands["b"].copy(), 5)},
            "MULTIPLY": f"wgmma::Across<Precision, {across}>::multiply" if "true" in across else "Precision::multiply",
            "DESCRIBED_A": self.operands["a"].describe("group_m + i * 64"),
            "DESCRIBED_B": self.operands["b"].describe("warp_n + n"),
            "PLACE": indent(self._place(tiles, first, end), 2),
            "GIVE_UP": f"        wgmma::give_up<{own}>();" if own else "",
            "CLAIM": f"    wgmma::claim<{most}>();" if own else "",
            **{"SCALE": indent(self._scale(), 2), "ROW_SCALE": indent(of_row, 3)},
            "EPILOGUE": indent(epilogue, 4),
            "AFTER_ROW": indent(self.tail.after_row() if self.tail else (), 3),
            **self._way_out(),
        }
        blocks = min(items, self.cores * tiling.resident) if tiling.stays else items
        launch = Launch(
            product.name, (blocks, 1, 1), (tiling.threads, 1, 1), tuple(slots), tiling.shared_bytes(self.precision)
        )
        return fill_packing_text("gemm_packed.cu", holes), launch

    def print(self) -> PrintedKernel:
        """The printed kernel: packing launches, the main loop, the launch that adds parts of k, and the launches of the
        tail."""
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
            choices={name: getattr(self.tiling, name) for name in _VALUES},
            tunables=self.tunables,
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
    """The printed kernel of a product from packed operands, in this precision."""
    return _Printer(kernel, plan, device, choices, precision).print()
