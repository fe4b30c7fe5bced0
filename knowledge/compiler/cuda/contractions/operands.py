"""Operands of a matrix product in CUDA: how their tiles travel from global memory through registers to shared memory.

The result's axes are m and n; k is the axis that is added up. An operand is any expression over strided buffers;
aligned neighbours in memory are read as one vector."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from foundry.knowledge.compiler.cuda.contractions.gemm_tiles import Tiling
from foundry.knowledge.compiler.cuda.contractions.tails import element_values
from foundry.knowledge.compiler.cuda.contractions.tensor_tiles import TensorTiling, WgmmaTiling
from foundry.knowledge.compiler.cuda.dialect import register_type
from foundry.knowledge.compiler.cuda.space import (
    Known,
    Space,
    body_leaves,
    collapse,
    element_load,
    index_type,
    loop_over_vector,
    make_emitter,
    plan_loads,
    vector_type,
)
from foundry.knowledge.compiler.ir.kernels import Expr, GemmKernel, Load, View
from foundry.knowledge.compiler.ir.views import leaves


@dataclass(frozen=True)
class Spaces:
    """The views of a product's operands and result over the same collapsed batch dimensions, then (m, k), (k, n) and
    the result's m and n as the stores see them. Each maps an original view to the collapsed one."""

    batch_sizes: tuple[int, ...]
    batch_names: tuple[str, ...]
    a: dict[View, View]
    b: dict[View, View]
    out: dict[View, View]


def spaces_of(kernel: GemmKernel) -> Spaces:
    """The collapsed views of a product: batch dimensions are merged where all operands and stores allow it."""
    count = len(kernel.batch)
    of_a = [leaf.view for leaf in leaves([kernel.a])]
    of_b = [leaf.view for leaf in leaves([kernel.b])]
    of_out = [leaf.view for leaf in body_leaves(kernel.stores)] + [store.view for store in kernel.stores]
    of_out += [leaf.view for leaf in leaves(element_values(kernel.tail))]
    views = [*of_a, *of_b, *of_out]
    sizes, strides = collapse(kernel.batch, [view.strides[:count] for view in views])
    seen = [View(v.offset, (*s, *v.strides[count:])) for v, s in zip(views, strides, strict=True)]
    maps = [dict(zip(views[i:j], seen[i:j], strict=True)) for i, j in _spans(len(of_a), len(of_b), len(of_out))]
    return Spaces(sizes, tuple(f"g{d}" for d in range(len(sizes))), *maps)


def out_space(kernel: GemmKernel, spaces: Spaces) -> Space:
    """The space of the result: batch dimensions, m and n, the latter as the stores see them."""
    batch = spaces.batch_sizes
    index = index_type((*batch, *kernel.m_shape, *kernel.n_shape), spaces.out.values())
    split = (*((size,) for size in batch), kernel.m_shape, kernel.n_shape) if kernel.is_split else ()
    return Space((*batch, kernel.m, kernel.n), (*spaces.batch_names, "m", "n"), spaces.out, index, split)


def _spans(*counts: int) -> list[tuple[int, int]]:
    """(begin, end) of consecutive runs of these lengths."""
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    return list(zip([0, *ends[:-1]], ends, strict=True))


@dataclass(frozen=True)
class Tile:
    """The path of a tile of one operand: global memory to registers (`fetch`), registers to shared memory (`keep`).

    `inner` is the axis along which a thread's vector and its neighbours run: "k", or the axis shared with the result.
    `read(held)` gives the C statements that put the vector at (m or n, k) into `held[i]`."""

    which: str  # "a" or "b"
    inside: tuple[str, ...]  # C tests that m or n, and k, are inside the matrix, for tiles at its edge
    tiling: Tiling | TensorTiling
    type: str
    index: str
    inner: str
    vector: int
    read: Callable[[str], list[str]]

    @property
    def out(self) -> str:
        """The axis that the operand shares with the result."""
        return "m" if self.which == "a" else "n"

    @property
    def along_k(self) -> bool:
        """True if vectors run along k."""
        return self.inner == "k"

    @property
    def tile_out(self) -> int:
        """Size of the tile along the result's axis."""
        return self.tiling.tile_m if self.which == "a" else self.tiling.tile_n

    @property
    def items(self) -> int:
        """Number of vectors in a tile."""
        return self.tile_out * self.tiling.tile_k // self.vector

    @property
    def loads(self) -> int:
        """Number of vectors of a tile that a thread moves."""
        return math.ceil(self.items / self.tiling.threads)

    def place(self) -> list[str]:
        """C statements that find the place in the tile of the vector that a thread moves in round i."""
        if isinstance(self.tiling, WgmmaTiling) and not self.along_k:
            return self._place_across()
        extent = (self.tiling.tile_k if self.inner == "k" else self.tile_out) // self.vector
        outer = self.out if self.inner == "k" else "k"
        scale = f" * {self.vector}" if self.vector > 1 else ""
        return [
            "const int item = threadIdx.x + i * THREADS;",
            f"const int in_{self.inner} = item % {extent}{scale}, in_{outer} = item / {extent};",
        ]

    def _place_across(self) -> list[str]:
        """C statements as in `place`, if rows of shared memory run along k but the operand does not.

        Eight neighbouring threads take eight values of k, whose words are in different banks."""
        extent = self.tile_out // self.vector
        return [
            "const int item = threadIdx.x + i * THREADS;",
            f"const int in_{self.out} = item / 8 % {extent} * {self.vector};",
            f"const int in_k = item / {8 * extent} * 8 + item % 8;",
        ]

    def is_item(self) -> list[str]:
        """The C test that a thread has a vector in the last round; [] if all have."""
        return [f"item < {self.items}"] if self.items % self.tiling.threads else []

    def fetch(self) -> list[str]:
        """C statements that read a tile from global memory to registers; elements outside the matrix become zero."""
        held = f"held_{self.which}"
        tests = [*self.is_item(), *self.inside]
        lines = ["#pragma unroll", f"for (int i = 0; i < {self.loads}; ++i) {{", *self.place()]
        lines.append(f"const {self.index} {self.out} = first_{self.out} + in_{self.out}, k = first_k + in_k;")
        if tests:
            lines.append(f"{held}[i] = Vec<{self.type}, {self.vector}>{{}};")
            return [*lines, f"if ({' && '.join(tests)}) {{", *self.read(held), "}", "}"]
        return [*lines, *self.read(held), "}"]

    def keep(self) -> list[str]:
        """C statements that write a tile from registers to shared memory.

        Tensor cores have the layout of their `Operand`; otherwise the result's axis is innermost."""
        to, held, pitch = f"to_{self.which}", f"held_{self.which}[i]", f"PITCH_{self.which.upper()}"
        if isinstance(self.tiling, TensorTiling):
            moves = [self.tiling.keep(self.which, self.vector, along_k=self.along_k)]
        elif self.inner == "k":
            store = [f"{to}[(in_k + j) * {pitch} + in_{self.out}] = {held}.at[j];"]
            moves = loop_over_vector(self.vector, store)
        else:
            moves = [f"store_vec<{self.vector}>({to} + in_k * {pitch} + in_{self.out}, {held});"]
        if self.is_item():
            moves = [f"if ({self.is_item()[0]}) {{", *moves, "}"]
        return ["#pragma unroll", f"for (int i = 0; i < {self.loads}; ++i) {{", *self.place(), *moves, "}"]


def edge_tests(*axes: tuple[str, int, int]) -> tuple[str, ...]:
    """C texts of the bounds tests for axes (name, size, tile) whose last tile is not full."""
    return tuple(f"{name} < {size}" for name, size, tile in axes if size % tile)


def strided_operand(
    kernel: GemmKernel, spaces: Spaces, which: str, tiling: Tiling | TensorTiling, *, widest: int = 4
) -> Tile:
    """The tile of operand "a" or "b", read along the axis contiguous in memory. At most `widest` neighbours at once
    (two unless float), where alignment and tile allow."""
    expr, where = (kernel.a, spaces.a) if which == "a" else (kernel.b, spaces.b)
    out, out_size = ("m", kernel.m) if which == "a" else ("n", kernel.n)
    kind = register_type(kernel.dtype)
    walks_last = _walks_last(expr, where)
    last, other = ("k", out) if which == "a" else (out, "k")
    axes = (other, last) if walks_last else (last, other)
    order = (-2, -1) if walks_last else (-1, -2)
    sizes = {"k": kernel.k, out: out_size}
    shape = (*spaces.batch_sizes, *(sizes[name] for name in axes))
    moved = {v: View(s.offset, (*s.strides[:-2], s.strides[order[0]], s.strides[order[1]])) for v, s in where.items()}
    space = Space(shape, (*spaces.batch_names, *axes), moved, index_type(shape, moved.values()))
    extent = tiling.tile_k if axes[-1] == "k" else tiling.tile_m if which == "a" else tiling.tile_n
    loads = [leaf for leaf in leaves([expr]) if isinstance(leaf, Load) and space.stride_of(leaf.view)]
    vector = 1
    for wide in (2, 4) if kind == "float" else (2,):
        if wide <= widest and extent % wide == 0 and loads and all(space.is_aligned(leaf.view, wide) for leaf in loads):
            vector = wide

    def read(held: str) -> list[str]:
        """C statements that read a vector of the operand into `held[i]`."""
        return _read_vector(expr, space, vector, kind, held)

    tile_out = tiling.tile_m if which == "a" else tiling.tile_n
    inside = edge_tests((out, out_size, tile_out), ("k", kernel.k, tiling.tile_k))
    return Tile(which, inside, tiling, type=kind, index=space.index, inner=axes[-1], vector=vector, read=read)


def _walks_last(expr: Expr, where: dict[View, View]) -> bool:
    """True if neighbours along the operand's last axis are neighbours in memory."""
    for leaf in leaves([expr]):
        if isinstance(leaf, Load) and any(where[leaf.view].strides[-2:]):
            strides = where[leaf.view].strides
            return strides[-1] == 1 or strides[-2] != 1
    return True


def _read_vector(expr: Expr, space: Space, vector: int, kind: str, held: str) -> list[str]:
    """C statements that read `vector` neighbours of `expr` into `held[i]`, as one vector if no arithmetic is needed."""
    if (
        vector > 1
        and isinstance(expr, Load)
        and expr.dtype in ("float32", "float64")
        and register_type(expr.dtype) == kind
    ):
        return [f"{held}[i] = load_vec<{vector}>(b_{expr.buffer} + {space.offset(expr.view)});"]
    known: Known = []
    lines = []
    for number, leaf in enumerate(plan_loads(space, leaves([expr]), vector).vectors):
        source = f"load_vec<{vector}>(b_{leaf.buffer} + {space.offset(leaf.view)})"
        lines.append(f"const {vector_type(leaf.dtype, vector)} v{number} = {source};")
        known.append((leaf, element_load(f"v{number}.at[j]", leaf.dtype)))
    inner = space.with_inner(f"({space.names[-1]} + j)") if vector > 1 else space
    body = make_emitter(inner, known, {})
    value = body.value(expr)
    body.lines.append(f"{held}[i].at[j] = ({kind})({value});")
    return [*lines, *loop_over_vector(vector, body.lines)]
