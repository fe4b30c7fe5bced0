"""Matrix products in CUDA: tensor cores or the ordinary units, any strides, batches, the epilogue fused, split over k.

`precision` is a tunable: TF32 or three products of it for float32, 16-bit operands as they are, IEEE arithmetic on the
ordinary units. The kernels stand in `gemm_mma.cu` and `gemm.cu`; `tiled.py` fills them in.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace

from foundry.knowledge.candidate import Choice
from foundry.knowledge.device import Device
from foundry.knowledge.library.cuda import launches as cuda_launch
from foundry.knowledge.library.cuda.contractions.gemm_tiles import Tiling, choose
from foundry.knowledge.library.cuda.contractions.operands import Spaces, over_vector, spaces_of, strided_operand
from foundry.knowledge.library.cuda.contractions.packed import in_place, print_packed
from foundry.knowledge.library.cuda.contractions.tensor_tiles import (
    IEEE,
    PACKED,
    PATH,
    PRECISION,
    TensorTiling,
    Ways,
    choose_tensor,
    way_tunables,
)
from foundry.knowledge.library.cuda.contractions.tiled import epilogue_lines, shared_bytes, shared_texts, tiled_source
from foundry.knowledge.library.cuda.dialect import register
from foundry.knowledge.library.cuda.launches import Launch
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
    pick,
)
from foundry.knowledge.library.file.assemble import fill
from foundry.knowledge.library.ir.kernels import Apply, Expr, GemmKernel, Plan, PrintedKernel, Tunable
from foundry.knowledge.opgraph import DType

_REDUCE_THREADS = 256

_REDUCE = """\
// Adds the partial products of @NAME@ in a fixed order and applies the epilogue.
extern "C" __global__ void __launch_bounds__(256) @NAME@_sum(@PARAMETERS@) {
    const @INDEX@ point = (@INDEX@)blockIdx.x * 256 + threadIdx.x;
    if (point < @POINTS@) {
        Vec<@TYPE@, @VECTOR@> total = load_vec<@VECTOR@>(partial + point * @VECTOR@);
#pragma unroll 4
        for (int split = 1; split < @SPLITS@; ++split) {
            const Vec<@TYPE@, @VECTOR@> next = load_vec<@VECTOR@>(partial + split * (@INDEX@)@STEP@ + point * @VECTOR@);
#pragma unroll
            for (int j = 0; j < @VECTOR@; ++j) total.at[j] += next.at[j];
        }
@EPILOGUE@
    }
}
"""


def operand_dtype(kernel: GemmKernel) -> DType:
    """The type whose values the operands hold: that of the product, or the 16-bit type that both were widened from."""
    found = {_narrow(expr) for expr in (kernel.a, kernel.b)}
    return found.pop() if len(found) == 1 else kernel.dtype


def _narrow(expr: Expr) -> DType:
    is_cast = isinstance(expr, Apply) and expr.op == "cast" and expr.args[0].dtype in ("float16", "bfloat16")
    return expr.args[0].dtype if is_cast and isinstance(expr, Apply) else expr.dtype


def choose_way(ways: Ways, device: Device, choices: dict[str, Choice]) -> tuple[str, str, tuple[Tunable, ...]]:
    """Precision and path ("" on the ordinary units), and their tunables."""
    precisions = ways.precisions(device.arch)
    precision = str(pick(choices, PRECISION, precisions, precisions[0]))
    paths = ways.paths(precision, device.arch) if precision != IEEE else ("",)
    path = str(pick(choices, PATH, paths, paths[0]))
    return precision, path, way_tunables(precisions, paths)


def choose_tiling(
    kernel: GemmKernel, ways: Ways, device: Device, choices: dict[str, Choice]
) -> tuple[Tiling | TensorTiling, tuple[Tunable, ...]]:
    """The tiling of the chosen way to multiply, which is none of packed operands, and all tunables."""
    precision, path, tunables = choose_way(ways, device, choices)
    tiling: Tiling | TensorTiling
    if precision == IEEE:
        tiling, more = choose(kernel, device, choices, scalar=ways.is_gathered)
    else:
        tiling, more = choose_tensor(kernel, path, precision, device, choices, scalar=ways.is_gathered)
    return tiling, (*tunables, *more)


def chosen(tiling: Tiling | TensorTiling, tunables: tuple[Tunable, ...]) -> dict[str, Choice]:
    """Every tunable's value."""
    path = tiling.path if isinstance(tiling, TensorTiling) else ""
    values: dict[str, Choice] = {PRECISION: IEEE, PATH: path, **asdict(tiling)}
    return {item.name: values[item.name] for item in tunables}


def arch_feature(tiling: Tiling | TensorTiling) -> str:
    """The letter that the architecture's name needs for the tiling's instructions."""
    return tiling.arch_feature if isinstance(tiling, TensorTiling) else ""


def labels(tiling: Tiling | TensorTiling) -> tuple[str, ...]:
    """What a reader of the receipt should know of the arithmetic: TF32 in one product, or in three."""
    if not isinstance(tiling, TensorTiling) or not tiling.is_tf32:
        return ()
    return ("tf32",) if tiling.precision == "tf32" else ("tf32:x3",)


class _Printer:
    def __init__(self, kernel: GemmKernel, plan: Plan, device: Device, choices: dict[str, Choice], ways: Ways) -> None:
        self.kernel = kernel
        self.plan = plan
        self.spaces = spaces_of(kernel)
        self.scalar = ways.is_gathered
        self.tiling, self.tunables = choose_tiling(kernel, ways, device, choices)
        self.type = register(kernel.dtype)
        self.name = cuda_launch.KERNEL_PREFIX + identifier(kernel.name)
        self.a = strided_operand(kernel, self.spaces, "a", self.tiling)
        self.b = strided_operand(kernel, self.spaces, "b", self.tiling)
        sizes = (*self.spaces.batch_sizes, kernel.m, kernel.n)
        names = (*self.spaces.batch_names, "m", "n")
        index = index_type(sizes, self.spaces.out.values())
        self.out = Space(sizes, names, self.spaces.out, index)
        self.batch = math.prod(kernel.batch)
        self.tiles_m = math.ceil(kernel.m / self.tiling.tile_m)
        self.tiles_n = math.ceil(kernel.n / self.tiling.tile_n)
        self.steps = math.ceil(kernel.k / self.tiling.tile_k)

    def _position(self) -> list[str]:
        """Batch point and part of k of this block; the tile within the batch point varies fastest."""
        tiles = self.tiles_m * self.tiles_n
        lines = []
        rest = f"(int)blockIdx.x / {tiles}"
        if self.tiling.splits > 1:
            lines.append(f"const int split = {rest} % {self.tiling.splits};")
            rest = f"{rest} / {self.tiling.splits}"
        if self.spaces.batch_sizes or self.tiling.splits > 1:
            lines.append(f"const int batch = {rest};")
        if self.spaces.batch_sizes:
            lines += decompose("batch", self.spaces.batch_sizes, self.spaces.batch_names, self.out.index)
        return lines

    def _guard(self) -> tuple[str, str]:
        kernel = self.kernel
        tests = [f"m < {kernel.m}"] if kernel.m % self.tiling.tile_m else []
        if kernel.n % self.tiling.tile_n:
            tests.append(f"n < {kernel.n}")
        return " && ".join(tests), f"n + j < {kernel.n}" if kernel.n % 4 else ""

    def _main(self) -> tuple[str, Launch]:
        kernel, tiling = self.kernel, self.tiling
        guard, element_guard = self._guard()
        found = leaves([kernel.a, kernel.b])
        if tiling.splits > 1:
            row = f"(({self.out.index})(split * {self.batch} + batch) * {kernel.m} + m) * {kernel.n} + n"
            body = [f"if ({element_guard}) {{", f"partial[{row} + j] = acc[i][h * 4 + j];", "}"]
            body = body if element_guard else body[1:2]
            epilogue = over_vector(4, body)
            epilogue = [f"if ({guard}) {{", *epilogue, "}"] if guard else epilogue
            reads, writes = buffers_of(found, [])
        else:
            acc = "acc[i][h * 4 + j]"
            epilogue = epilogue_lines(self.out, kernel.stores, self.plan, acc, 4, guard, element_guard)
            reads, writes = buffers_of([*found, *body_leaves(kernel.stores)], kernel.stores)
        signature, arguments = parameters(self.plan, reads, writes)
        if tiling.splits > 1:
            signature += f", {self.type}* __restrict__ partial"
            arguments.append(cuda_launch.workspace(0))
        per_split = math.ceil(self.steps / tiling.splits)
        last = f"(split + 1) * {per_split} < {self.steps} ? (split + 1) * {per_split} : {self.steps}"
        first, end = "0", str(self.steps)
        if tiling.splits > 1:
            first, end = f"split * {per_split}", last
        grid_tiles = (self.tiles_m, self.tiles_n)
        source = tiled_source(
            *(
                self.name,
                signature,
                self.a,
                self.b,
                self.out.index,
                grid_tiles,
                self._position(),
                (first, end),
                epilogue,
            ),
            scalar=self.scalar,
        )
        grid = (self.tiles_m * self.tiles_n * self.batch * tiling.splits, 1, 1)
        return source, Launch(self.name, grid, (tiling.threads, 1, 1), tuple(arguments), shared_bytes(self.a, self.b))

    def _sum(self) -> tuple[str, Launch]:
        """The second launch of a product split over k."""
        kernel = self.kernel
        vector = 4 if kernel.n % 4 == 0 and all(self.out.aligned(s.view, 4) for s in kernel.stores) else 1
        points = self.batch * kernel.m * kernel.n // vector
        reads, writes = buffers_of(body_leaves(kernel.stores), kernel.stores)
        signature, arguments = parameters(self.plan, reads, writes)
        sizes = (*self.out.sizes[:-1], self.out.sizes[-1] // vector)
        names = (*self.out.names[:-1], "nv" if vector > 1 else "n")
        place = decompose("point", sizes, names, self.out.index)
        if vector > 1:
            place.append(f"const {self.out.index} n = nv * {vector};")
        epilogue = epilogue_lines(self.out, kernel.stores, self.plan, "total.at[j]", vector, "", "")
        values: dict[str, object] = {
            "NAME": self.name,
            "PARAMETERS": ", ".join([signature, f"const {self.type}* __restrict__ partial"]),
            "TYPE": self.type,
            "INDEX": self.out.index,
            "POINTS": points,
            "VECTOR": vector,
            "SPLITS": self.tiling.splits,
            "STEP": self.batch * kernel.m * kernel.n,
            "EPILOGUE": indent([*place, *epilogue], 2),
        }
        source = fill(_REDUCE, {name: str(value) for name, value in values.items()})
        grid = (math.ceil(points / _REDUCE_THREADS), 1, 1)
        args = (*arguments, cuda_launch.workspace(0))
        return source, Launch(f"{self.name}_sum", grid, (_REDUCE_THREADS, 1, 1), args)

    def print(self) -> PrintedKernel:
        source, launch = self._main()
        sources, launches = [source], [launch]
        if self.tiling.splits > 1:
            source, launch = self._sum()
            sources.append(source)
            launches.append(launch)
        item = 8 if self.type == "double" else 4
        partial = self.tiling.splits * self.batch * self.kernel.m * self.kernel.n * item
        return PrintedKernel(
            functions="\n".join(sources),
            call=cuda_launch.encode(launches),
            template="gemm",
            choices=chosen(self.tiling, self.tunables),
            tunables=self.tunables,
            labels=labels(self.tiling),
            shared=shared_texts(self.tiling),
            arch_feature=arch_feature(self.tiling),
            d_mem=3 if self.tiling.stages > 1 else 2,
            d_algo=2 if self.tiling.splits > 1 else 1 if len(self.kernel.ops) > 1 else 0,
            d_sync=3 if self.tiling.splits > 1 else 1,
            workspace_bytes=partial if self.tiling.splits > 1 else 0,
            launches=len(launches),
        )


def ways_of(kernel: GemmKernel, plan: Plan) -> Ways:
    """In which ways a product may be multiplied."""
    spaces = spaces_of(kernel)
    operands = [strided_operand(kernel, spaces, which, Tiling()) for which in ("a", "b")]
    dtype = operand_dtype(kernel)
    return Ways(
        dtype=dtype,
        is_gathered=any(operand.vector == 1 for operand in operands),
        suits_wgmma=all(operand.along_k for operand in operands),
        ieee_only=plan.ieee_only,
        packs=True,
        packing_pays=packing_pays(kernel, spaces, dtype, along_k=all(operand.along_k for operand in operands)),
    )


def packing_pays(kernel: GemmKernel, spaces: Spaces, dtype: DType, *, along_k: bool) -> bool:
    """Whether launches that pack the operands are won back by the faster main loop, by rates measured on an H200:
    600 and 170 TFLOP/s (110 where an operand does not lie along k), 3 TB/s while packing, 3 us a launch more.
    Parameters are packed once, and what the copy engine reads as it is never."""
    batch = math.prod(kernel.batch)
    work = 2.0 * batch * kernel.m * kernel.n * kernel.k
    packed = [
        size
        for which, size, is_constant in (("a", kernel.m, kernel.constant_a), ("b", kernel.n, kernel.constant_b))
        if not is_constant and in_place(kernel, spaces, which) is None
    ]
    moved = batch * sum(packed) * kernel.k * (4 if dtype in ("float16", "bfloat16") else 6)
    launches = 4.5e-6 * len(packed)
    return work / 600e12 + moved / 3e12 + launches < work / (170e12 if along_k else 110e12)


def print_gemm(kernel: GemmKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    ways = ways_of(kernel, plan)
    precision, path, tunables = choose_way(ways, device, choices)
    if path != PACKED:
        return _Printer(kernel, plan, device, choices, ways).print()
    printed = print_packed(kernel, plan, device, choices, precision)
    way: dict[str, Choice] = {PRECISION: precision, PATH: path}
    known = {item.name: way[item.name] for item in tunables}
    return replace(printed, choices={**known, **printed.choices}, tunables=(*tunables, *printed.tunables))
