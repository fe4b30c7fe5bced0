"""Matrix products in CUDA: shared-memory tiles, register blocking, the epilogue fused, any strides, batches.

Float32 runs on the ordinary multiply-add units in IEEE arithmetic; 16-bit operands are widened when they are read.
The kernel itself stands in `gemm.cu`; this file fills in how operands are fetched and what happens to the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from foundry.knowledge.candidate import Choice
from foundry.knowledge.device import Device
from foundry.knowledge.library.cuda import launches as cuda_launch
from foundry.knowledge.library.cuda.contractions.gemm_tiles import Tiling, choose
from foundry.knowledge.library.cuda.dialect import CUDA_DIALECT, register
from foundry.knowledge.library.cuda.launches import Launch
from foundry.knowledge.library.cuda.space import (
    Known,
    Space,
    body_leaves,
    buffers_of,
    collapse,
    decompose,
    element_load,
    emitter,
    identifier,
    indent,
    index_type,
    leaves,
    load_plan,
    parameters,
    vector_type,
)
from foundry.knowledge.library.file.assemble import fill
from foundry.knowledge.library.file.texts import read_library_text
from foundry.knowledge.library.ir.kernels import Expr, GemmKernel, Load, Plan, PrintedKernel, Store, View

GROUP = 8
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


@dataclass(frozen=True)
class _Spaces:
    """The same collapsed batch dimensions before (m, k), (k, n) and (m, n)."""

    batch_sizes: tuple[int, ...]
    batch_names: tuple[str, ...]
    a: dict[View, View]
    b: dict[View, View]
    out: dict[View, View]


def _spaces(kernel: GemmKernel) -> _Spaces:
    count = len(kernel.batch)
    of_a = [leaf.view for leaf in leaves([kernel.a])]
    of_b = [leaf.view for leaf in leaves([kernel.b])]
    of_out = [leaf.view for leaf in body_leaves(kernel.stores)] + [store.view for store in kernel.stores]
    views = [*of_a, *of_b, *of_out]
    sizes, strides = collapse(kernel.batch, [view.strides[:count] for view in views])
    seen = [View(v.offset, (*s, *v.strides[count:])) for v, s in zip(views, strides, strict=True)]
    maps = [dict(zip(views[i:j], seen[i:j], strict=True)) for i, j in _spans(len(of_a), len(of_b), len(of_out))]
    return _Spaces(sizes, tuple(f"g{d}" for d in range(len(sizes))), *maps)


def _spans(*counts: int) -> list[tuple[int, int]]:
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    return list(zip([0, *ends[:-1]], ends, strict=True))


@dataclass(frozen=True)
class Tile:
    """How a tile of one operand travels: global memory to registers (`fetch`), registers to shared memory (`keep`).

    `inner` is the axis along which a thread's vector and the threads' neighbours lie: "k" or the one shared with the
    result. `read` gives the statements that put the vector at (m or n, k) into `held[i]`.
    """

    which: str  # "a" or "b"
    inside: tuple[str, ...]  # what must hold of m or n, and of k, that a tile at the edge may lie outside of
    tiling: Tiling
    type: str
    index: str
    inner: str
    vector: int
    read: Callable[[str], list[str]]

    @property
    def out(self) -> str:
        return "m" if self.which == "a" else "n"

    @property
    def tile_out(self) -> int:
        return self.tiling.tile_m if self.which == "a" else self.tiling.tile_n

    @property
    def items(self) -> int:
        return self.tile_out * self.tiling.tile_k // self.vector

    @property
    def loads(self) -> int:
        return math.ceil(self.items / self.tiling.threads)

    def place(self) -> list[str]:
        """Which vector of the tile a thread moves in round i."""
        extent = (self.tiling.tile_k if self.inner == "k" else self.tile_out) // self.vector
        outer = self.out if self.inner == "k" else "k"
        scale = f" * {self.vector}" if self.vector > 1 else ""
        return [
            "const int item = threadIdx.x + i * THREADS;",
            f"const int in_{self.inner} = item % {extent}{scale}, in_{outer} = item / {extent};",
        ]

    def is_item(self) -> list[str]:
        """The test that spares the last round's idle threads."""
        return [f"item < {self.items}"] if self.items % self.tiling.threads else []

    def fetch(self) -> list[str]:
        """Global memory to registers; what lies outside the matrix is zero."""
        held = f"held_{self.which}"
        tests = [*self.is_item(), *self.inside]
        lines = ["#pragma unroll", f"for (int i = 0; i < {self.loads}; ++i) {{", *self.place()]
        lines.append(f"const {self.index} {self.out} = first_{self.out} + in_{self.out}, k = first_k + in_k;")
        if tests:
            lines.append(f"{held}[i] = Vec<{self.type}, {self.vector}>{{}};")
            return [*lines, f"if ({' && '.join(tests)}) {{", *self.read(held), "}", "}"]
        return [*lines, *self.read(held), "}"]

    def keep(self) -> list[str]:
        """Registers to shared memory, with the result's axis innermost."""
        to, pitch = f"to_{self.which}", f"PITCH_{self.which.upper()}"
        held = f"held_{self.which}[i]"
        if self.inner == "k":
            store = [f"{to}[(in_k + j) * {pitch} + in_{self.out}] = {held}.at[j];"]
            moves = _over_vector(self.vector, store)
        else:
            moves = [f"store_vec<{self.vector}>({to} + in_k * {pitch} + in_{self.out}, {held});"]
        if self.is_item():
            moves = [f"if ({self.is_item()[0]}) {{", *moves, "}"]
        return ["#pragma unroll", f"for (int i = 0; i < {self.loads}; ++i) {{", *self.place(), *moves, "}"]


def edges(*axes: tuple[str, int, int]) -> tuple[str, ...]:
    """Tests for the axes (name, size, tile) whose last tile is not full."""
    return tuple(f"{name} < {size}" for name, size, tile in axes if size % tile)


def _operand(kernel: GemmKernel, spaces: _Spaces, which: str, tiling: Tiling) -> Tile:
    """A strided operand, or an expression over strided ones, read along the axis that is contiguous in memory."""
    expr, where = (kernel.a, spaces.a) if which == "a" else (kernel.b, spaces.b)
    out, out_size = ("m", kernel.m) if which == "a" else ("n", kernel.n)
    kind = register(kernel.dtype)
    walks_last = _walks_last(expr, where)
    last, other = ("k", out) if which == "a" else (out, "k")
    axes = (other, last) if walks_last else (last, other)
    order = (-2, -1) if walks_last else (-1, -2)
    sizes = {"k": kernel.k, out: out_size}
    shape = (*spaces.batch_sizes, *(sizes[name] for name in axes))
    moved = {v: View(s.offset, (*s.strides[:-2], s.strides[order[0]], s.strides[order[1]])) for v, s in where.items()}
    space = Space(shape, (*spaces.batch_names, *axes), moved, index_type(shape, moved.values()))
    extent = tiling.tile_k if axes[-1] == "k" else tiling.tile_m if which == "a" else tiling.tile_n
    loads = [leaf for leaf in leaves([expr]) if isinstance(leaf, Load) and space.stride(leaf.view)]
    vector = 1
    for wide in (2, 4) if kind == "float" else (2,):
        if extent % wide == 0 and loads and all(space.aligned(leaf.view, wide) for leaf in loads):
            vector = wide

    def read(held: str) -> list[str]:
        return _read_vector(expr, space, vector, kind, held)

    tile_out = tiling.tile_m if which == "a" else tiling.tile_n
    inside = edges((out, out_size, tile_out), ("k", kernel.k, tiling.tile_k))
    return Tile(which, inside, tiling, kind, space.index, axes[-1], vector, read)


def _walks_last(expr: Expr, where: dict[View, View]) -> bool:
    """True when neighbours along the operand's last axis are neighbours in memory."""
    for leaf in leaves([expr]):
        if isinstance(leaf, Load) and any(where[leaf.view].strides[-2:]):
            strides = where[leaf.view].strides
            return strides[-1] == 1 or strides[-2] != 1
    return True


def _read_vector(expr: Expr, space: Space, vector: int, kind: str, held: str) -> list[str]:
    """Puts `vector` neighbours of `expr` into `held[i]`, as plain vectors where no arithmetic is needed."""
    if vector > 1 and isinstance(expr, Load) and expr.dtype in ("float32", "float64") and register(expr.dtype) == kind:
        return [f"{held}[i] = load_vec<{vector}>(b_{expr.buffer} + {space.offset(expr.view)});"]
    known: Known = []
    lines = []
    for number, leaf in enumerate(load_plan(space, leaves([expr]), vector).vectors):
        source = f"load_vec<{vector}>(b_{leaf.buffer} + {space.offset(leaf.view)})"
        lines.append(f"const {vector_type(leaf.dtype, vector)} v{number} = {source};")
        known.append((leaf, element_load(f"v{number}.at[j]", leaf.dtype)))
    inner = space.with_inner(f"({space.names[-1]} + j)") if vector > 1 else space
    body = emitter(inner, known, {})
    value = body.value(expr)
    body.lines.append(f"{held}[i].at[j] = ({kind})({value});")
    return [*lines, *_over_vector(vector, body.lines)]


def _over_vector(vector: int, body: Sequence[str]) -> list[str]:
    if vector == 1:
        return ["{", "const int j = 0;", *body, "}"]
    return ["#pragma unroll", f"for (int j = 0; j < {vector}; ++j) {{", *body, "}"]


def epilogue_lines(
    space: Space, stores: Sequence[Store], plan: Plan, acc: str, vector: int, guard: str, element_guard: str
) -> list[str]:
    """The stores at (m, n .. n + vector), the accumulator of element j being `acc`. Without aligned stores the four
    elements are stored one by one."""
    wide = all(space.aligned(store.view, vector) for store in stores) if vector > 1 else False
    known: Known = []
    lines: list[str] = []
    if wide:
        for number, leaf in enumerate(load_plan(space, body_leaves(stores), vector).vectors):
            source = f"load_vec<{vector}>(b_{leaf.buffer} + {space.offset(leaf.view)})"
            lines.append(f"const {vector_type(leaf.dtype, vector)} e{number} = {source};")
            known.append((leaf, element_load(f"e{number}.at[j]", leaf.dtype)))
    inner = space.with_inner(f"({space.names[-1]} + j)") if vector > 1 else space
    body = emitter(inner, known, {"acc": acc})
    body.reserve(store.value for store in stores)
    after: list[str] = []
    for number, store in enumerate(stores):
        dtype = plan.buffers[store.buffer].dtype
        value = CUDA_DIALECT.store(body.value(store.value), dtype)
        if wide:
            lines.append(f"{vector_type(dtype, vector)} out{number};")
            body.lines.append(f"out{number}.at[j] = {value};")
            after.append(f"store_vec<{vector}>(b_{store.buffer} + {space.offset(store.view)}, out{number});")
        else:
            body.lines.append(f"b_{store.buffer}[{inner.offset(store.view)}] = {value};")
    inside = body.lines
    if element_guard and not wide:
        inside = [f"if ({element_guard}) {{", *inside, "}"]
    lines = [*lines, *_over_vector(vector, inside), *after]
    return [f"if ({guard}) {{", *lines, "}"] if guard else lines


def tiled_source(
    name: str,
    signature: str,
    a: Tile,
    b: Tile,
    index: str,
    tiles: tuple[int, int],
    batch: Sequence[str],
    steps: tuple[str, str],
    epilogue: Sequence[str],
    *,
    scalar: bool,
    tile: str = "",
    afterwards: Sequence[str] = (),
) -> str:
    """The kernel of `gemm.cu`: `tiles` of the result, `batch` defines what operands and epilogue index besides
    m, n and k, `steps` bound the tiles of k. `scalar`: every element of an operand has an address of its own, held
    in registers. `tile` says which of the tiles is the block's; `afterwards` stands before the epilogue."""
    tiling = a.tiling
    values: dict[str, object] = {
        "NAME": name,
        "PARAMETERS": signature,
        "TYPE": a.type,
        "INDEX": index,
        "BM": tiling.tile_m,
        "BN": tiling.tile_n,
        "BK": tiling.tile_k,
        "TM": tiling.thread_m,
        "TN": tiling.thread_n,
        "THREADS": tiling.threads,
        "STAGES": tiling.stages,
        "MIN_BLOCKS": tiling.resident_blocks(8 if a.type == "double" else 4, scalar=scalar),
        "GROUP": GROUP,
        "TILE": tile or f"(int)blockIdx.x % {tiles[0] * tiles[1]}",
        **{"TILES_M": tiles[0], "TILES_N": tiles[1]},
        "BATCH": indent(batch),
        **{"VECTOR_A": a.vector, "VECTOR_B": b.vector, "LOADS_A": a.loads, "LOADS_B": b.loads},
        "FETCH_A": indent(a.fetch(), 2),
        "FETCH_B": indent(b.fetch(), 2),
        "KEEP_A": indent(a.keep(), 2),
        "KEEP_B": indent(b.keep(), 2),
        "FIRST_STEP": steps[0],
        "END_STEP": steps[1],
        "AFTERWARDS": indent(afterwards),
        "EPILOGUE": indent(epilogue, 3),
    }
    return fill(read_library_text("cuda/contractions/gemm.cu"), {key: str(value) for key, value in values.items()})


class _Printer:
    def __init__(self, kernel: GemmKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> None:
        self.kernel = kernel
        self.plan = plan
        self.spaces = _spaces(kernel)
        scalar = any(_operand(kernel, self.spaces, which, Tiling()).vector == 1 for which in ("a", "b"))
        self.tiling, self.tunables = choose(kernel, device, choices, scalar=scalar)
        self.type = register(kernel.dtype)
        self.name = cuda_launch.KERNEL_PREFIX + identifier(kernel.name)
        self.a = _operand(kernel, self.spaces, "a", self.tiling)
        self.b = _operand(kernel, self.spaces, "b", self.tiling)
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
            epilogue = _over_vector(4, body)
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
            scalar=self.a.vector == 1 or self.b.vector == 1,
        )
        grid = (self.tiles_m * self.tiles_n * self.batch * tiling.splits, 1, 1)
        shared = tiling.shared_bytes(8 if self.type == "double" else 4)
        return source, Launch(self.name, grid, (tiling.threads, 1, 1), tuple(arguments), shared)

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
            choices=asdict(self.tiling),
            tunables=self.tunables,
            d_mem=3 if self.tiling.stages > 1 else 2,
            d_algo=2 if self.tiling.splits > 1 else 1 if len(self.kernel.ops) > 1 else 0,
            d_sync=3 if self.tiling.splits > 1 else 1,
            workspace_bytes=partial if self.tiling.splits > 1 else 0,
            launches=len(launches),
        )


def print_gemm(kernel: GemmKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    return _Printer(kernel, plan, device, choices).print()
