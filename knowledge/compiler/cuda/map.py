"""Pointwise kernels in CUDA: every thread moves a few 16-byte vectors, all loads before the first store.

A candidate's kernel looks like `_KERNEL`. The printer decides the vector width from alignment and strides, how many
vectors a thread keeps in flight, and which loads are broadcast. Transposed operands go through shared memory
(`map_tile`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda import launches
from foundry.knowledge.compiler.cuda.dialect import register_type
from foundry.knowledge.compiler.cuda.launches import symbol_of
from foundry.knowledge.compiler.cuda.map_tile import Turned, find_turned, print_turned
from foundry.knowledge.compiler.cuda.space import (
    WIDEST_BYTES,
    Known,
    LoadPlan,
    Space,
    body_leaves,
    collapse,
    decompose,
    element_load,
    indent,
    index_type,
    make_emitter,
    make_tunable,
    pick_number,
    plan_loads,
    signature_of,
    unroll,
    vector_stores,
    vector_type,
    wide_gathers,
    widest_vector,
)
from foundry.knowledge.compiler.ir import kernels as ir
from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.weight import parts_of
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import ITEM_BYTES, DType

THREADS = (64, 128, 256, 512, 1024)
IN_FLIGHT = (1, 2, 4, 8)
USUAL_THREADS = 128  # 12.9 GB on an H200: 3.01 ms, 3.02 with 256, 3.04 in PyTorch; 64 take 3.80
# Functions of about as many instructions as memory has time for keep 256 threads and 4 accesses in flight, with which
# softplus of 12.9 GB takes 3.10 ms. With 128 and one, and another form of softplus, it took 3.36; the two were not
# measured apart.
LONG = frozenset({"softplus", "logsigmoid", "log1p"})

MANY_PARTS = 150  # parts of an element's expression; the values of more fill the registers of a thread

_KERNEL = """\
extern "C" __global__ void __launch_bounds__({threads}) {name}({parameters}) {{
    const {index} first = ({index})blockIdx.x * {per_block} + threadIdx.x;
{staged}
#pragma unroll
    for (int u = 0; u < {unroll}; ++u) {{
        const {index} point = first + u * {threads};
        {guard}{{
{loads}
        }}
    }}
#pragma unroll
    for (int u = 0; u < {unroll}; ++u) {{
        const {index} point = first + u * {threads};
        {guard}{{
{compute}
        }}
    }}
}}
"""


@dataclass(frozen=True)
class _Shape:
    """How a pointwise kernel is divided: elements of a vector, threads of a block, and vectors of a thread
    (`unroll`)."""

    space: Space
    vector: int
    threads: int
    unroll: int

    @property
    def points(self) -> int:
        """Number of vectors in the whole space."""
        return math.prod(self.space.sizes) // self.vector


def _merge_space(kernel: ir.MapKernel) -> Space:
    """The iteration space with merged dimensions, sorted by the strides of the first store: the smallest is
    innermost."""
    views = list(
        dict.fromkeys(
            [leaf.view for leaf in body_leaves(kernel.stores)] + [store.view for store in kernel.stores],
        )
    )
    leading = kernel.stores[0].view.strides
    order = sorted(range(len(kernel.shape)), key=lambda d: (kernel.shape[d] > 1, -abs(leading[d]), d))
    sizes = [kernel.shape[d] for d in order]
    shape, strides = collapse(sizes, [tuple(view.strides[d] for d in order) for view in views])
    where = {view: ir.View(view.offset, seen) for view, seen in zip(views, strides, strict=True)}
    names = tuple(f"i{d}" for d in range(len(shape)))
    return Space(shape, names, where, index_type(shape, where.values()))


def _moved_dtypes(kernel: ir.MapKernel, plan: ir.Plan) -> list[DType]:
    """The dtypes of all stored buffers, then those of all loads."""
    dtypes = [plan.buffers[store.buffer].dtype for store in kernel.stores]
    return dtypes + [leaf.dtype for leaf in body_leaves(kernel.stores) if isinstance(leaf, ir.Load)]


def _legal_vectors(kernel: ir.MapKernel, space: Space, plan: ir.Plan) -> list[int]:
    """Vector widths in elements that every store allows, 1 first."""
    widest = widest_vector(_moved_dtypes(kernel, plan))
    legal = [1]
    for vector in (2, 4, 8, 16):
        if vector <= widest and all(space.is_aligned(store.view, vector) for store in kernel.stores):
            legal.append(vector)
    return legal


def _choose_shape(
    kernel: ir.MapKernel, plan: ir.Plan, device: Device, choices: dict[str, Choice]
) -> tuple[_Shape, list[int]]:
    """(the kernel's shape by `choices` or defaults, legal vector widths)."""
    space = _merge_space(kernel)
    vectors = _legal_vectors(kernel, space, plan)
    vector = pick_number(choices, "vector", vectors, _usual_vector(kernel, vectors))
    threads = pick_number(choices, "threads", THREADS, _usual_threads(kernel))
    unroll = pick_number(choices, "in_flight", IN_FLIGHT, _usually_in_flight(kernel, plan, vector, space, device))
    return _Shape(space, vector, threads, unroll), vectors


def _usual_vector(kernel: ir.MapKernel, vectors: list[int]) -> int:
    """The default vector width: the widest, but 1 for a body of so many parts that a vector of values would spill."""
    return 1 if parts_of(kernel) > MANY_PARTS else vectors[-1]


def _is_long(kernel: ir.MapKernel) -> bool:
    """True if each element takes so much arithmetic that memory waits for it."""
    found = (node for store in kernel.stores for node in views.nodes(store.value))
    return any(isinstance(node, ir.Apply) and node.op in LONG for node in found)


def _usual_threads(kernel: ir.MapKernel) -> int:
    """The default number of threads of a block: 256 before long arithmetic, else 128."""
    return 2 * USUAL_THREADS if _is_long(kernel) else USUAL_THREADS


def _usually_in_flight(kernel: ir.MapKernel, plan: ir.Plan, vector: int, space: Space, device: Device) -> int:
    """Default number of accesses that a thread has under way: 1, 2 or 4.

    One access of 16 bytes suffices: on an H200 four of them took 1.05 times as long. Narrow ones, and those before long
    arithmetic, need more, if there are points and registers for it.
    """
    if parts_of(kernel) > MANY_PARTS:
        return 1
    if (
        not _is_long(kernel)
        and vector * max(ITEM_BYTES[dtype] for dtype in _moved_dtypes(kernel, plan)) >= WIDEST_BYTES
    ):
        return 1
    waves = math.prod(space.sizes) // vector // (device.cores * 2048 * 2)  # twice as many as are resident
    return 4 if waves >= 4 else 2 if waves >= 2 else 1


def _print_loads(shape: _Shape, plan: LoadPlan) -> tuple[list[str], list[str], Known]:
    """(declarations of arrays for the loaded values, statements of round `u` that fill them, C text of each leaf's
    value afterwards)."""
    declared, lines = [], []
    known: Known = []
    for i, leaf in enumerate(plan.vectors):
        declared.append(f"{vector_type(leaf.dtype, shape.vector)} v{i}[{shape.unroll}];")
        lines.append(f"v{i}[u] = load_vec<{shape.vector}>(b_{leaf.buffer} + {shape.space.offset(leaf.view)});")
        known.append((leaf, element_load(f"v{i}[u].at[j]", leaf.dtype)))
    for i, leaf in enumerate(plan.broadcast):
        declared.append(f"{register_type(leaf.dtype)} s{i}[{shape.unroll}];")
        source = element_load(f"b_{leaf.buffer}[{shape.space.offset(leaf.view)}]", leaf.dtype)
        lines.append(f"s{i}[u] = {source};")
        known.append((leaf, f"s{i}[u]"))
    return declared, lines, known


def _print_position(shape: _Shape) -> list[str]:
    """C statements that define the indices of the first element of vector number `point`."""
    space = shape.space
    if not space.sizes:
        return []
    sizes = (*space.sizes[:-1], space.sizes[-1] // shape.vector)
    names = (*space.names[:-1], f"{space.names[-1]}v" if shape.vector > 1 else space.names[-1])
    lines = decompose("point", sizes, names, space.index)
    if shape.vector > 1:
        lines.append(f"const {space.index} {space.names[-1]} = {names[-1]} * {shape.vector};")
    return lines


def _print_compute(shape: _Shape, stores: tuple[ir.Store, ...], plan: ir.Plan, known: Known) -> list[str]:
    """C statements of round `u`: compute the stored values of a vector from the loaded ones and store them."""
    inner = shape.space.with_inner(f"({shape.space.names[-1]} + j)") if shape.vector > 1 else shape.space
    lines, gathered = wide_gathers(shape.space, [store.value for store in stores], shape.vector, known)
    body = make_emitter(inner, [*gathered, *known], {})
    if shape.vector == 1:
        body.store_all(stores, shape.space.offset, plan.buffers)
        return [*lines, *body.lines]
    form = "write_vec" if shape.space.index == "long long" else "store_vec"
    before, after = vector_stores(body, stores, shape.space, vector=shape.vector, plan=plan, form=form)
    return [*lines, *before, *unroll(shape.vector, body.lines), *after]


def _tile_tunable(turned: Turned | None) -> tuple[ir.Tunable, ...]:
    """The tunable of the tiles that turn transposed operands; none without such operands."""
    meaning = "elements along a side of the tiles that turn transposed operands in shared memory; 0 none"
    return (make_tunable("tile", turned.sides, 32, "tile", meaning),) if turned else ()


def _print_turned(kernel: ir.MapKernel, plan: ir.Plan, choices: dict[str, Choice]) -> ir.PrintedKernel | None:
    """The kernel with operands transposed through shared memory; None if it has none, or `choices` says "tile" 0."""
    space = _merge_space(kernel)
    turned = find_turned(kernel, space)
    side = pick_number(choices, "tile", turned.sides, 32) if turned else 0
    if turned is None or not side:
        return None
    source, launch = print_turned(kernel, plan, space, turned, side)
    return ir.PrintedKernel(
        functions=source,
        call=launches.encode([launch]),
        template="map",
        choices={"tile": side},
        tunables=_tile_tunable(turned),
    )


def _list_tunables(kernel: ir.MapKernel, turned: Turned | None, vectors: list[int]) -> tuple[ir.Tunable, ...]:
    """The tunables of a kernel that does not go through tiles; "in_flight" always names 1 as its default."""
    usual = _usual_threads(kernel)
    return (
        *_tile_tunable(turned),
        make_tunable(
            "threads", THREADS, usual, "parallel", "threads of a block: more share its launch, fewer its limits"
        ),
        make_tunable("vector", vectors, _usual_vector(kernel, vectors), "vector", "elements of one memory access"),
        make_tunable("in_flight", IN_FLIGHT, 1, "memory", "accesses a thread has under way: more hide latency"),
    )


def _print_shape(kernel: ir.MapKernel, plan: ir.Plan, shape: _Shape) -> tuple[str, launches.Launch]:
    """(CUDA text, launch) of a kernel that does not go through tiles."""
    found = body_leaves(kernel.stores)
    loading = plan_loads(shape.space, found, shape.vector)
    if shape.vector == 1:  # all plain loads come first, so that a thread has several in flight
        loading = LoadPlan((), tuple(leaf for leaf in found if isinstance(leaf, ir.Load)))
    declared, loads, known = _print_loads(shape, loading)
    if shape.vector == 1:
        known = [(leaf, text.replace("[j]", "[0]")) for leaf, text in known]
    text, arguments = signature_of(plan, found, kernel.stores)
    per_block = shape.threads * shape.unroll
    blocks = max(1, math.ceil(shape.points / per_block))
    name = symbol_of(kernel)
    position = _print_position(shape)
    source = _KERNEL.format(
        name=name,
        threads=shape.threads,
        per_block=per_block,
        unroll=shape.unroll,
        parameters=text,
        index=shape.space.index,
        staged=indent(declared),
        guard="" if shape.points % per_block == 0 else f"if (point < {shape.points}) ",
        loads=indent([*position, *loads], 3),
        compute=indent([*position, *_print_compute(shape, kernel.stores, plan, known)], 3),
    )
    return source, launches.Launch(name, (blocks, 1, 1), (shape.threads, 1, 1), tuple(arguments))


def print_map(kernel: ir.MapKernel, plan: ir.Plan, device: Device, choices: dict[str, Choice]) -> ir.PrintedKernel:
    """CUDA of a MapKernel.

    `choices` may hold:
    - "tile": side in elements of the shared memory tiles that transpose operands (32, 64; 0: none); with it the others
      do not count
    - "vector": elements of one memory access (1, 2, 4, 8, 16)
    - "threads": threads of a block (64 to 1024)
    - "in_flight": accesses that a thread issues before it uses the first (1, 2, 4, 8)
    A value that is not legal for this kernel gives way to the default.
    """
    turned = _print_turned(kernel, plan, choices)
    if turned is not None:
        return turned
    shape, vectors = _choose_shape(kernel, plan, device, choices)
    source, launch = _print_shape(kernel, plan, shape)
    of_tiles = find_turned(kernel, shape.space)
    return ir.PrintedKernel(
        functions=source,
        call=launches.encode([launch]),
        template="map",
        choices={
            **({"tile": 0} if of_tiles else {}),
            "threads": shape.threads,
            "vector": shape.vector,
            "in_flight": shape.unroll,
        },
        tunables=_list_tunables(kernel, of_tiles, vectors),
    )
