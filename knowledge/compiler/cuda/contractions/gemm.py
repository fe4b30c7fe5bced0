"""Matrix products in CUDA: tensor cores or the ordinary units, any strides, batches, the epilogue fused, split over k.

`precision` is a tunable: TF32 or three products of it for float32, 16-bit operands as they are, IEEE arithmetic on the
ordinary units. The kernels stand in `gemm_mma.cu` and `gemm.cu`; `tiled.py` fills them in.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from functools import partial

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda import launches as cuda_launch
from foundry.knowledge.compiler.cuda.contractions.gemm_tiles import Tiling, choose_ordinary
from foundry.knowledge.compiler.cuda.contractions.operands import Spaces, out_space, spaces_of, strided_operand
from foundry.knowledge.compiler.cuda.contractions.packed import print_packed
from foundry.knowledge.compiler.cuda.contractions.packing import find_in_place
from foundry.knowledge.compiler.cuda.contractions.row_tails import RowTail, ordinary_lanes, tensor_lanes
from foundry.knowledge.compiler.cuda.contractions.splits import Partial, find_block, split_steps
from foundry.knowledge.compiler.cuda.contractions.tails import element_values, tail_text
from foundry.knowledge.compiler.cuda.contractions.tensor_tiles import (
    IEEE,
    LABELS,
    PACKED,
    PATH,
    PRECISION,
    TensorTiling,
    Ways,
    choose_tensor,
    declare_ways,
)
from foundry.knowledge.compiler.cuda.contractions.tiled import epilogue_lines, shared_bytes, shared_texts, tiled_source
from foundry.knowledge.compiler.cuda.dialect import register_type
from foundry.knowledge.compiler.cuda.launches import Argument, Launch, symbol_of
from foundry.knowledge.compiler.cuda.space import body_leaves, pick, signature_of
from foundry.knowledge.compiler.ir.kernels import Apply, Expr, GemmKernel, Plan, PrintedKernel, Tunable
from foundry.knowledge.compiler.ir.views import leaves
from foundry.knowledge.device import Device
from foundry.knowledge.devices import constant
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import ITEM_BYTES, DType

SPLIT = "splits"


def operand_dtype(kernel: GemmKernel) -> DType:
    """The dtype whose values both operands hold: the 16-bit one that both were widened from, or that of the product."""
    found = {_narrow(expr) for expr in (kernel.a, kernel.b)}
    return found.pop() if len(found) == 1 else kernel.dtype


def _narrow(expr: Expr) -> DType:
    """The dtype of an expression, seen through a cast from a 16-bit float."""
    is_cast = isinstance(expr, Apply) and expr.op == "cast" and expr.args[0].dtype in ("float16", "bfloat16")
    return expr.args[0].dtype if is_cast and isinstance(expr, Apply) else expr.dtype


def choose_way(ways: Ways, device: Device, choices: dict[str, Choice]) -> tuple[str, str, tuple[Tunable, ...]]:
    """(precision, path, their tunables) by choices or defaults; the path is "" on the ordinary units."""
    precisions = ways.precisions(device.arch)
    precision = str(pick(choices, PRECISION, precisions, precisions[0]))
    paths = ways.paths(precision, device.arch) if precision != IEEE else ("",)
    path = str(pick(choices, PATH, paths, paths[0]))
    return precision, path, declare_ways(precisions, paths)


def choose_tiling(
    kernel: GemmKernel, ways: Ways, device: Device, choices: dict[str, Choice]
) -> tuple[Tiling | TensorTiling, tuple[Tunable, ...]]:
    """(tiling of the chosen precision and path, all tunables); not for packed operands."""
    precision, path, tunables = choose_way(ways, device, choices)
    tiling: Tiling | TensorTiling
    if precision == IEEE:
        tiling, more = choose_ordinary(kernel, device, choices, scalar=ways.is_gathered)
    else:
        tiling, more = choose_tensor(kernel, path, precision, device, choices, scalar=ways.is_gathered)
    return tiling, (*tunables, *more)


def list_choices(tiling: Tiling | TensorTiling, tunables: tuple[Tunable, ...]) -> dict[str, Choice]:
    """The value of every tunable, by name."""
    path = tiling.path if isinstance(tiling, TensorTiling) else ""
    values: dict[str, Choice] = {PRECISION: IEEE, PATH: path, **asdict(tiling)}
    return {item.name: values[item.name] for item in tunables}


def need_feature(tiling: Tiling | TensorTiling) -> str:
    """The suffix that the architecture's name needs for the tiling's instructions; "" for none."""
    return tiling.arch_feature if isinstance(tiling, TensorTiling) else ""


def label_precision(tiling: Tiling | TensorTiling) -> tuple[str, ...]:
    """The receipt's labels of the arithmetic: TF32 in one product, or in three."""
    return LABELS.get(tiling.precision, ()) if isinstance(tiling, TensorTiling) else ()


class _Printer:
    """Prints a product whose main loop brings its operands into tiles itself, with its epilogue and its tail."""

    def __init__(self, kernel: GemmKernel, plan: Plan, device: Device, choices: dict[str, Choice], ways: Ways) -> None:
        self.kernel = kernel
        self.plan = plan
        self.spaces = spaces_of(kernel)
        self.scalar = ways.is_gathered
        self.tiling, self.tunables = choose_tiling(kernel, ways, device, choices)
        self.type = register_type(kernel.dtype)
        self.name = symbol_of(kernel)
        self.a = strided_operand(kernel, self.spaces, "a", self.tiling)
        self.b = strided_operand(kernel, self.spaces, "b", self.tiling)
        self.out = out_space(kernel, self.spaces)
        self.batch = math.prod(kernel.batch)
        self.tiles_m = math.ceil(kernel.m / self.tiling.tile_m)
        self.tiles_n = math.ceil(kernel.n / self.tiling.tile_n)
        self.steps = math.ceil(kernel.k / self.tiling.tile_k)
        self.partial = Partial(
            kernel, plan, self.name, type=self.type, out=self.out, splits=self.tiling.splits, memory=0
        )
        self.tail = self._tail() if kernel.tail else None

    def _tail(self) -> RowTail:
        """The printer of the product's tail. Raises CannotLower if k is split, or for rows that the lanes cannot
        reduce."""
        tiling = self.tiling
        if tiling.splits > 1:
            raise CannotLower("parts of k have no whole elements to reduce")
        if isinstance(tiling, TensorTiling):
            lanes = tensor_lanes(self.kernel, tiling.tile_n, tiling.store_columns)
        else:
            lanes = ordinary_lanes(self.kernel, tiling.tile_n, tiling.thread_n)
        tile = tiling.tile_m, tiling.tile_n
        return RowTail(self.kernel, self.plan, self.name, out=self.out, lanes=lanes, tile=tile, memory=0)

    def _guard(self) -> tuple[str, str]:
        """(C test that four neighbours at (m, n) are in the result, C test that element j of them is); "" where it
        always holds."""
        kernel = self.kernel
        tests = [f"m < {kernel.m}"] if kernel.m % self.tiling.tile_m else []
        if kernel.n % self.tiling.tile_n:
            tests.append(f"n < {kernel.n}")
        return " && ".join(tests), f"n + j < {kernel.n}" if kernel.n % 4 else ""

    def _main(self) -> tuple[str, Launch]:
        """(CUDA text, launch) of the main loop."""
        kernel, tiling = self.kernel, self.tiling
        guard, element_guard = self._guard()
        found = leaves([kernel.a, kernel.b])
        acc = "acc[i][h * 4 + j]"
        if tiling.splits > 1:
            epilogue = self.partial.store(acc, guard, element_guard)
            signature, names = signature_of(self.plan, found, [])
        else:
            epilogue = epilogue_lines(
                self.out, kernel.stores, self.plan, acc=acc, vector=4, guard=guard, element_guard=element_guard
            )
            if self.tail:
                epilogue = self.tail.epilogue(kernel.stores, acc, guard, element_guard)
            after = [*body_leaves(kernel.stores), *leaves(element_values(kernel.tail))]
            signature, names = signature_of(self.plan, [*found, *after], kernel.stores)
        arguments: list[Argument] = [*names]
        if tiling.splits > 1:
            signature += f", {self.partial.parameter}"
            arguments.append(self.partial.argument)
        for text, slot in self.tail.slots() if self.tail else []:
            signature += f", {text}"
            arguments.append(slot)
        tiles = self.tiles_m * self.tiles_n
        place = find_block(tiles, tiling.splits, self.spaces.batch_sizes, self.spaces.batch_names, self.out.index)
        source = tiled_source(
            *(self.name, signature, self.a, self.b, self.out.index, (self.tiles_m, self.tiles_n), place),
            *(split_steps(self.steps, tiling.splits, kernel), epilogue),
            scalar=self.scalar,
            after_row=self.tail.after_row() if self.tail else (),
        )
        grid = (tiles * self.batch * tiling.splits, 1, 1)
        return source, Launch(self.name, grid, (tiling.threads, 1, 1), tuple(arguments), shared_bytes(self.a, self.b))

    def print(self) -> PrintedKernel:
        """The printed kernel: the main loop, the launch that adds parts of k, and the launches of the tail."""
        source, launch = self._main()
        sources, launches = [source], [launch]
        if self.tiling.splits > 1:
            source, launch = self.partial.sum()
            sources.append(source)
            launches.append(launch)
        workspace_bytes = self.partial.bytes if self.tiling.splits > 1 else 0
        shared = shared_texts(self.tiling)
        if self.tail:
            workspace_bytes, shared = self.tail.end, (*shared, tail_text())
            for source, launch in self.tail.launches():
                sources.append(source)
                launches.append(launch)
        return PrintedKernel(
            functions="\n".join(sources),
            call=cuda_launch.encode(launches),
            template="gemm",
            choices=list_choices(self.tiling, self.tunables),
            tunables=self.tunables,
            labels=label_precision(self.tiling),
            shared=shared,
            arch_feature=need_feature(self.tiling),
            workspace_bytes=workspace_bytes,
            launches=len(launches),
        )


def ways_of(kernel: GemmKernel, plan: Plan, device: Device) -> Ways:
    """Facts of a product that decide its precisions and paths."""
    spaces = spaces_of(kernel)
    operands = [strided_operand(kernel, spaces, which, Tiling()) for which in ("a", "b")]
    dtype = operand_dtype(kernel)
    return Ways(
        dtype=dtype,
        is_gathered=any(operand.vector == 1 for operand in operands),
        suits_wgmma=all(operand.along_k for operand in operands),
        ieee_only=plan.ieee_only,
        packs=True,
        packing_pays=packing_pays(kernel, spaces, device, along_k=all(operand.along_k for operand in operands)),
    )


def packing_pays(kernel: GemmKernel, spaces: Spaces, device: Device, *, along_k: bool) -> bool:
    """True if the main loop over packed operands is faster, the packing launches included.

    Estimated by the card's rates (knowledge/devices). Constant operands and those that TMA reads unpacked cost no
    packing."""
    dtype, rate = operand_dtype(kernel), partial(constant, device)
    batch = math.prod(kernel.batch)
    work = 2.0 * batch * kernel.m * kernel.n * kernel.k
    packed = [
        size
        for which, size, is_constant in (("a", kernel.m, kernel.constant_a), ("b", kernel.n, kernel.constant_b))
        if not is_constant and find_in_place(kernel, spaces, which) is None
    ]
    moved = batch * sum(packed) * kernel.k * (4 if dtype in ("float16", "bfloat16") else 6)
    launches = rate("packing_launch") * len(packed)
    read = batch * (kernel.m + kernel.n) * kernel.k * ITEM_BYTES[dtype]
    multiplying = work / rate("staged_product" if along_k else "staged_product_across")
    staged = max(multiplying, read / rate("staged_reading"))
    return work / rate("packed_product") + moved / rate("packing") + launches < staged


def print_gemm(kernel: GemmKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """CUDA of a matrix product with its epilogue.

    `choices` may hold "precision" and "path", and those that the path takes:
    - "tile_m", "tile_n": rows and columns of a block's tile
    - "tile_k": depth of a tile
    - "stages": tiles in flight
    - "splits": parts of k
    - "thread_m", "thread_n", "warp_m", "warp_n", "group_m", "group_n": the part of the tile that a thread, a warp or a
      warpgroup adds up
    - "resident", "stays": as in `packed.py`
    A value that is not legal for this kernel gives way to the default. A product with a tail is never split. Raises
    CannotLower for a tail that the chosen path cannot make."""
    if kernel.tail is None:
        return _print_product(kernel, plan, device, choices)
    whole = {name: value for name, value in choices.items() if name != SPLIT}
    printed = _print_product(kernel, plan, device, whole)
    kept = {name: value for name, value in printed.choices.items() if name != SPLIT}
    return replace(printed, choices=kept, tunables=tuple(item for item in printed.tunables if item.name != SPLIT))


def _print_product(kernel: GemmKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """The printed kernel by its chosen precision and path; it may be split even if it has a tail, which then raises
    CannotLower."""
    ways = ways_of(kernel, plan, device)
    precision, path, tunables = choose_way(ways, device, choices)
    if path != PACKED:
        return _Printer(kernel, plan, device, choices, ways).print()
    printed = print_packed(kernel, plan, device, choices, precision)
    way: dict[str, Choice] = {PRECISION: precision, PATH: path}
    known = {item.name: way[item.name] for item in tunables}
    return replace(printed, choices={**known, **printed.choices}, tunables=(*tunables, *printed.tunables))
