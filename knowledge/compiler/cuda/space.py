"""Iteration spaces of the CUDA printers: collapsing dimensions, index arithmetic, and which loads may be vectors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda.dialect import CUDA_DIALECT, element_type, register_type
from foundry.knowledge.compiler.ir import kernels as ir
from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import shares_memory
from foundry.knowledge.compiler.ir.scalar import Emitter, affine, loader
from foundry.knowledge.compiler.ir.views import Leaf, joint_groups, leaves, merge_dimensions
from foundry.knowledge.opgraph import ITEM_BYTES, DType

LARGEST_INT = 2**31 - 1
WIDEST_BYTES = 16  # widest load of one thread


def to_identifier(name: str) -> str:
    """`name` as a C identifier: each character that C does not allow becomes an underscore."""
    return re.sub(r"\W", "_", name)


def collapse(sizes: Sequence[int], strides: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Drops dimensions of size 1 and merges neighbours that every stride tuple walks as one. Returns (the sizes left,
    the stride tuples over them in the order of `strides`)."""
    groups = joint_groups(sizes, strides)
    shape = tuple(math.prod(sizes[d] for d in group) for group in groups)
    return shape, [tuple(walk[group[-1]] for group in groups) for walk in strides]


@dataclass(frozen=True)
class Space:
    """A collapsed iteration space: the loop over `sizes`, whose index variables in C are `names`, outermost first.

    `where` maps each original view to the same view over the collapsed dimensions. If `split` is set, views see a
    dimension as several (its sizes in `split`). `step` is C text that is added to the innermost index."""

    sizes: tuple[int, ...]
    names: tuple[str, ...]
    where: Mapping[ir.View, ir.View]
    index: str  # "int" or "long long"
    split: tuple[tuple[int, ...], ...] = ()
    step: str = ""

    @property
    def innermost(self) -> int:
        """The size of the innermost dimension that views see."""
        return self.split[-1][-1] if self.split else self.sizes[-1]

    def _terms(self, seen: ir.View) -> Iterator[tuple[int, str]]:
        """Yields (stride in elements, C text of the index) for each dimension that `seen` walks. A split dimension
        gives one pair for each group of its parts that one stride covers."""
        first = 0
        for number, (name, size) in enumerate(zip(self.names, self.sizes, strict=True)):
            parts = self.split[number] if self.split else (size,)
            strides = seen.strides[first : first + len(parts)]
            first += len(parts)
            groups = merge_dimensions(parts, strides) if len(parts) > 1 else [(size, strides[0])]
            step, whole = self.step if number == len(self.names) - 1 else "", math.prod(parts)
            radix = whole
            for extent, stride in groups:
                text, radix = self._digit(name, whole, radix, radix // extent), radix // extent
                yield stride, f"({text} + {step})" if step and radix == 1 else text

    def _digit(self, name: str, size: int, above: int, radix: int) -> str:
        """C text of `(name mod above) / radix`, an index within `size` points; operations that change nothing are left
        out."""
        text = f"({'unsigned' if size <= LARGEST_INT else 'unsigned long long'}){name}"
        text = f"{text} / {radix}" if radix > 1 else text
        text = f"{text} % {above // radix}" if above < size else text
        return f"({self.index})({text})" if radix > 1 or above < size else name

    def offset(self, view: ir.View) -> str:
        """C text of the offset of `view` at the current point, in elements."""
        seen = self.where[view]
        return affine(seen.offset, self._terms(seen))

    def stride_of(self, view: ir.View, dimension: int = -1) -> int:
        """The stride of `view` along a dimension of the space, in elements (the innermost by default); 0 in a space
        without dimensions."""
        return self.where[view].strides[dimension] if self.sizes else 0

    def with_inner(self, text: str) -> Space:
        """A copy of the space in which `text` is the C text of the innermost index."""
        return replace(self, names=(*self.names[:-1], text))

    def at_neighbour(self, vector: int) -> Space:
        """A copy of the space at element `j` of a vector: `j` is a C variable below `vector`, added to the innermost
        index."""
        if vector == 1:
            return self
        if self.split and self.innermost % vector == 0:  # a vector never crosses into the next outer index
            return replace(self, step="j")
        return self.with_inner(f"({self.names[-1]} + j)")

    def is_aligned(self, view: ir.View, vector: int) -> bool:
        """True if `vector` neighbours along the innermost dimension are one block of memory, aligned to its own size,
        everywhere in the space."""
        seen = self.where[view]
        if not self.sizes or seen.strides[-1] != 1 or self.innermost % vector:
            return False
        return all(value % vector == 0 for value in (seen.offset, *seen.strides[:-1]))


def index_type(sizes: Sequence[int], views: Iterable[ir.View]) -> str:
    """The C type for indices: "int" if the number of points and every offset of the views stay below 2^30, else "long
    long"."""
    reach = math.prod(sizes)
    for view in views:
        reach = max(reach, abs(view.offset) + sum(abs(s) * (n - 1) for s, n in zip(view.strides, sizes, strict=True)))
    return "int" if reach < LARGEST_INT // 2 else "long long"


def decompose(flat: str, sizes: Sequence[int], names: Sequence[str], index: str) -> list[str]:
    """C statements that define the variables `names` (at least one) from `flat`, the row-major index over `sizes`.
    Divisors are constants, which compilers turn into multiplications."""
    lines = []
    rest = flat
    for d in range(len(sizes) - 1, 0, -1):
        lines.append(f"const {index} {names[d]} = {rest} % {sizes[d]};")
        following = f"{names[d]}_up" if d > 1 else names[0]
        lines.append(f"const {index} {following} = {rest} / {sizes[d]};")
        rest = following
    if len(sizes) == 1:
        lines.append(f"const {index} {names[0]} = {flat};")
    return lines


@dataclass(frozen=True)
class LoadPlan:
    """Loads of a body that are not read element by element: `vectors` are read by one wide load, `broadcast` once for a
    whole vector."""

    vectors: tuple[ir.Load, ...]
    broadcast: tuple[ir.Load, ...]


def plan_loads(space: Space, leaves_: Iterable[Leaf], vector: int) -> LoadPlan:
    """Sorts loads by how they are read when a thread takes `vector` neighbours: aligned contiguous ones as vectors,
    those that do not move along the innermost dimension once. Other leaves appear in neither list."""
    loads = [leaf for leaf in leaves_ if isinstance(leaf, ir.Load)]
    wide = tuple(leaf for leaf in loads if vector > 1 and space.is_aligned(leaf.view, vector))
    fixed = tuple(leaf for leaf in loads if leaf not in wide and (not space.sizes or space.stride_of(leaf.view) == 0))
    return LoadPlan(wide, fixed)


def vector_type(dtype: DType, vector: int) -> str:
    """The C++ type of `vector` stored elements of `dtype` that are loaded or stored at once."""
    return f"Vec<{element_type(dtype)}, {vector}>"


def widest_vector(dtypes: Iterable[DType]) -> int:
    """Elements of the smallest of `dtypes` (4 bytes if there are none) that one 16-byte access moves, at most 8."""
    sizes = [ITEM_BYTES[dtype] for dtype in dtypes] or [4]
    return max(1, min(8, WIDEST_BYTES // min(sizes)))


Known = list[tuple[ir.Expr, str]]
"""Expressions whose values are already in registers, with their C text. Pairs, because hashing an expression walks its
whole tree."""


def make_emitter(space: Space, known: Known, names: Mapping[str, str], prefix: str = "t") -> Emitter:
    """An expression printer over `space`, which collects C statements in its `lines`.

    `known`: expressions whose values are in registers already. `names`: C text of the IR's named values. `prefix`: the
    beginning of the names of its temporaries."""
    return Emitter(CUDA_DIALECT, loader(CUDA_DIALECT, space.offset), names, known=known, prefix=prefix)


def loop_over_vector(vector: int, body: Iterable[str]) -> list[str]:
    """C statements that run `body` for each element j of a vector: an unrolled loop, or a scope with j = 0 for a vector
    of one."""
    return unroll(vector, body) if vector > 1 else ["{", "const int j = 0;", *body, "}"]


def unroll(vector: int, body: Iterable[str]) -> list[str]:
    """An unrolled C loop that runs `body` for each j below `vector`."""
    return ["#pragma unroll", f"for (int j = 0; j < {vector}; ++j) {{", *body, "}"]


def vector_stores(
    body: Emitter, stores: Sequence[ir.Store], place: Space, vector: int, plan: ir.Plan, form: str = "store_vec"
) -> tuple[list[str], list[str]]:
    """Appends to `body` statements that compute element j of each stored vector. Returns (declarations of the vectors,
    to stand before the loop over j; stores of whole vectors, to stand behind it).

    `place` is the space at the vectors' first elements, `form` the C++ function that stores a vector."""
    body.reserve(store.value for store in stores)
    before: list[str] = []
    after: list[str] = []
    for i, store in enumerate(stores):
        dtype = plan.buffers[store.buffer].dtype
        before.append(f"{vector_type(dtype, vector)} out{i};")
        body.lines.append(f"out{i}.at[j] = {CUDA_DIALECT.store(body.value(store.value), dtype)};")
        after.append(f"{form}<{vector}>(b_{store.buffer} + {place.offset(store.view)}, out{i});")
    return before, after


def wide_gathers(space: Space, values: Iterable[ir.Expr], vector: int, known: Known) -> tuple[list[str], Known]:
    """C statements that read whole vectors from rows chosen by an index (an embedding's), and (gather, C text of its
    element j) for each.

    Only gathers whose vectors lie within one row are read so. `known`: values in registers, such as the index's
    loads."""
    lines: list[str] = []
    made: Known = []
    found = [leaf for leaf in leaves(values) if isinstance(leaf, ir.Gather) and _is_wide(space, leaf, vector)]
    for i, leaf in enumerate(found):
        body = make_emitter(space, known, {}, f"g{i}_")
        index = body.value(leaf.index)
        row = f"math::wrap_index(g{i}_at, {leaf.bound})"
        source = f"load_vec<{vector}>(b_{leaf.buffer} + {space.offset(leaf.view)} + {row} * {leaf.step})"
        lines += [*body.lines, f"const long long g{i}_at = {index};"]
        lines.append(f"const {vector_type(leaf.dtype, vector)} g{i} = {source};")
        element = element_load(f"g{i}.at[j]", leaf.dtype)
        if leaf.fill is not None:
            fill = CUDA_DIALECT.constant(leaf.fill, leaf.dtype)
            element = f"math::where(math::in_bounds(g{i}_at, {leaf.bound}), {element}, {fill})"
        made.append((leaf, element))
    return lines, made


def _is_wide(space: Space, leaf: ir.Gather, vector: int) -> bool:
    """True if `vector` neighbours along the innermost dimension have the same index and are one aligned block of the
    row."""
    inside = list(views.nodes(leaf.index))
    seen = [node.view for node in inside if isinstance(node, Leaf)]
    same = all(space.stride_of(view) == 0 for view in seen) and not any(isinstance(node, ir.Named) for node in inside)
    return vector > 1 and same and leaf.step % vector == 0 and space.is_aligned(leaf.view, vector)


def body_leaves(stores: Iterable[ir.Store]) -> list[Leaf]:
    """The leaves (loads, gathers, positions) of all stored values, each once."""
    return leaves(store.value for store in stores)


def buffers_of(leaves_: Iterable[Leaf], stores: Iterable[ir.Store]) -> tuple[list[str], list[str]]:
    """(names of the buffers that the leaves only read, names of those that the stores write), each name once. A buffer
    that is read and written counts as written."""
    reads = dict.fromkeys(leaf.buffer for leaf in leaves_ if not isinstance(leaf, ir.Iota))
    writes = dict.fromkeys(store.buffer for store in stores)
    return [name for name in reads if name not in writes], list(writes)


def list_parameters(plan: ir.Plan, reads: Iterable[str], writes: Iterable[str]) -> tuple[str, list[str]]:
    """(C++ parameter list of a kernel, names of its buffers in the same order). Buffers that are only read are const
    pointers; all are restrict pointers unless one of them has the memory of another."""
    reads, writes = list(reads), list(writes)
    old = {name for name in reads if shares_memory(plan.buffers, name, writes)}
    keeps = " __restrict__" if not old else ""  # one of the pointers that are written is that of an old value
    text = [
        f"const {element_type(plan.buffers[name].dtype)}*{'' if name in old else ' __restrict__'} b_{name}"
        for name in reads
    ]
    text += [f"{element_type(plan.buffers[name].dtype)}*{keeps} b_{name}" for name in writes]
    return ", ".join(text), [*reads, *writes]


def signature_of(plan: ir.Plan, read: Iterable[Leaf], stores: Iterable[ir.Store]) -> tuple[str, list[str]]:
    """(C++ parameter list of a kernel that reads `read` and writes `stores`, names of the buffers to launch it
    with)."""
    return list_parameters(plan, *buffers_of(read, stores))


def indent(lines: Iterable[str], depth: int = 1) -> str:
    """Joins lines of C with four blanks a level, beginning at `depth`. Braces inside change the level, preprocessor
    lines stay at the margin."""
    out = []
    level = depth
    for line in lines:
        closing = line.startswith("}")
        level -= closing
        out.append(line if line.startswith("#") else "    " * level + line)
        level += line.endswith("{")
    return "\n".join(out)


def pick(choices: Mapping[str, Choice], name: str, values: Sequence[Choice], default: Choice) -> Choice:
    """The chosen value of `name` if it is one of `values`, else the default: an inherited choice may not fit a changed
    kernel."""
    wanted = choices.get(name, default)
    return wanted if wanted in values else default


def pick_number(choices: Mapping[str, Choice], name: str, values: Sequence[int], default: int) -> int:
    """The chosen integer of `name` if it is one of `values`, else the default."""
    wanted = choices.get(name, default)
    return wanted if isinstance(wanted, int) and wanted in values else default


def make_tunable(name: str, values: Sequence[Choice], default: Choice, aspect: str, meaning: str) -> ir.Tunable:
    """A tunable as kernels declare it: legal values, default, the aspect it belongs to, and its meaning in words."""
    return ir.Tunable(name, tuple(values), default, aspect, meaning)  # type: ignore[arg-type]


def element_load(text: str, dtype: DType) -> str:
    """C text of a stored element as a register value: 16-bit floats become float32."""
    return CUDA_DIALECT.load(text, dtype)


def zero(dtype: DType) -> str:
    """C text of a zero of the register type of `dtype`."""
    return f"({register_type(dtype)})0"
