"""Text and facts that all CPU printers use: iteration spaces with merged dimensions, hoisting, parameters and tunables
of a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.ir import kernels as ir
from foundry.knowledge.compiler.ir.access import shares_memory
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, Emitter, affine, loader
from foundry.knowledge.compiler.ir.views import distinct, joint_groups
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import ITEM_BYTES, DType


@dataclass(frozen=True)
class Space:
    """An iteration space with neighbouring dimensions merged where all its views allow it.

    `sizes` are the merged sizes (never empty). The stride of merged dimension d is that of original dimension
    `last[d]`.
    """

    sizes: tuple[int, ...]
    last: tuple[int, ...]

    @staticmethod
    def merge(shape: Sequence[int], views: Iterable[ir.View], *, barriers: Iterable[int] = ()) -> Space:
        """The space of `shape` with neighbouring dimensions merged if one stride walks both in every view. Dimensions
        of size 1 vanish.

        `barriers` are indices of dimensions that are not merged with the dimension before them."""
        groups = joint_groups(shape, (view.strides for view in views), frozenset(barriers))
        if not groups:
            return Space((1,), (max(len(shape) - 1, 0),))
        return Space(
            tuple(math.prod(shape[d] for d in group) for group in groups), tuple(group[-1] for group in groups)
        )

    @property
    def points(self) -> int:
        """Number of points of the space."""
        return math.prod(self.sizes)

    def strides(self, view: ir.View) -> tuple[int, ...]:
        """A view's strides over the merged dimensions, in elements."""
        return tuple(view.strides[dim] if view.strides else 0 for dim in self.last)

    def offset(self, indices: Sequence[str]) -> Callable[[ir.View], str]:
        """A function that gives the C text of a view's offset in elements at `indices`, one for each merged
        dimension."""

        def text(view: ir.View) -> str:
            """C text of the view's offset."""
            return affine(view.offset, zip(self.strides(view), indices, strict=True))

        return text


def varies(expr: ir.Expr, moving: Callable[[ir.View], bool], names: frozenset[str] = frozenset()) -> dict[int, bool]:
    """{identity of a node below `expr`: True if its value changes with the dimensions behind `moving`}.

    Named values are constant unless listed in `names`.
    """
    result: dict[int, bool] = {}
    for node in distinct([expr]):
        if isinstance(node, ir.Apply):
            result[id(node)] = any(result[id(argument)] for argument in node.args)
        elif isinstance(node, ir.Gather):
            result[id(node)] = moving(node.view) or result[id(node.index)]
        elif isinstance(node, ir.Load | ir.Iota):
            result[id(node)] = moving(node.view)
        else:
            result[id(node)] = isinstance(node, ir.Named) and node.name in names
    return result


Known = list[tuple[ir.Expr, str]]
"""Values that identifiers already hold."""


def find_invariants(
    exprs: Sequence[ir.Expr], moving: Callable[[ir.View], bool], names: frozenset[str] = frozenset()
) -> list[ir.Expr]:
    """The largest sub-expressions that do not change in a loop and are worth computing before it.

    `moving(view)`: True if a view's offset changes in the loop.
    """
    found: list[ir.Expr] = []
    for expr in exprs:
        changing = varies(expr, moving, names)
        stack, seen = [expr], set[int]()
        while stack:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if not changing[id(node)]:
                if not isinstance(node, ir.Const | ir.Named):
                    found.append(node)
            elif isinstance(node, ir.Apply):
                stack.extend(reversed(node.args))
            elif isinstance(node, ir.Gather):
                stack.append(node.index)
    return found


def hoist(
    exprs: Sequence[ir.Expr], offset: Callable[[ir.View], str], names: Mapping[str, str], known: Known, prefix: str
) -> tuple[list[str], Known]:
    """(C++ statements that compute the expressions found by `find_invariants`, `known` extended by their identifiers).
    Names begin with `prefix`."""
    emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), names, known=known, prefix=prefix)
    emitter.reserve(exprs)
    held = [(expr, emitter.identifier(expr)) for expr in exprs]
    return emitter.lines, [*known, *held]


def list_parameters(exprs: Iterable[ir.Expr], stores: Iterable[ir.Store], plan: ir.Plan) -> tuple[str, str]:
    """(C++ parameter list, argument list of a call) of a kernel that reads `exprs` and writes `stores`."""
    written = list(dict.fromkeys(store.buffer for store in stores))
    read = [n.buffer for n in distinct(exprs) if isinstance(n, ir.Load | ir.Gather) and n.buffer not in written]
    old = {name for name in read if shares_memory(plan.buffers, name, written)}
    keeps = " __restrict" if not old else ""  # one of the pointers that are written is that of an old value
    declared = [
        f"const {element_type(plan, name)}*{'' if name in old else ' __restrict'} b_{name}"
        for name in dict.fromkeys(read)
    ]
    declared += [f"{element_type(plan, name)}*{keeps} b_{name}" for name in written]
    return ", ".join(declared), ", ".join(f"b_{name}" for name in (*dict.fromkeys(read), *written))


def element_type(plan: ir.Plan, buffer: str) -> str:
    """C type of a buffer's elements."""
    return CPU_DIALECT.storage[plan.buffers[buffer].dtype]


def register_type(dtype: DType) -> str:
    """C type in which values of `dtype` are computed."""
    return CPU_DIALECT.register[dtype]


def indent(lines: Iterable[str], depth: int) -> str:
    """Joins lines of C++ with two spaces for each level of `depth`."""
    return "\n".join("  " * depth + part if part else "" for line in lines for part in line.split("\n"))


def vector_widths(device: Device) -> list[int]:
    """The two widest register widths in bytes that the device has, widest first."""
    return [width for width in (64, 32, 16) if width <= max(device.vector_bytes, 16)][:2]


def choose_threads(tuning: Tuning, device: Device, work_bytes: int) -> str:
    """The OpenMP clause for the number of threads, by the tunable "threads": all that PyTorch has, unless the kernel is
    too small to share. "" stands for all.

    Waking a team costs some microseconds, about what one core needs for 64 KB."""
    counts = [1 << i for i in range(device.cores.bit_length()) if 1 << i < device.cores] + [device.cores]
    default = 1 if work_bytes < 64 * 1024 else device.cores
    meaning = "threads that share the kernel; fewer save waking them, more add bandwidth and arithmetic"
    count = tuning.number("threads", counts, default, "parallel", meaning)
    if count == device.cores:
        return ""
    return " num_threads(1)" if count == 1 else f" num_threads(team_of({count}))"


def item_bytes(exprs: Iterable[ir.Expr], stores: Iterable[ir.Store], plan: ir.Plan) -> int:
    """Bytes of the widest element that vector code must hold, at least 4."""
    dtypes = [node.dtype for node in distinct(exprs) if not isinstance(node, ir.Const)]
    dtypes += [plan.buffers[store.buffer].dtype for store in stores]
    floats = [ITEM_BYTES[dtype] for dtype in dtypes if dtype in ("float32", "float64")]
    return max([4, *floats])


def traffic_bytes(exprs: Iterable[ir.Expr], stores: Iterable[ir.Store], plan: ir.Plan) -> int:
    """Compulsory traffic of a kernel in bytes: each buffer that it reads or writes, once."""
    names = {n.buffer for n in distinct(exprs) if isinstance(n, ir.Load | ir.Gather)} | {
        store.buffer for store in stores
    }
    return sum(plan.buffers[name].numel * ITEM_BYTES[plan.buffers[name].dtype] for name in names)


HUGE_PAGE_BYTES = 2 << 20


def page_advice(tuning: Tuning, stores: Iterable[ir.Store], plan: ir.Plan) -> tuple[list[str], tuple[str, ...]]:
    """(C++ statements before the kernel's call, labels) that ask for huge pages (2 MB) behind outputs of several such
    pages. Declares the tunable "pages" if there are any.

    An allocation above glibc's largest mmap threshold (32 MB) is new memory each call, with a page fault per 4 KB."""
    outputs = [plan.buffers[name] for name in dict.fromkeys(store.buffer for store in stores)]
    sizes = {b.name: b.numel * ITEM_BYTES[b.dtype] for b in outputs if b.role == "output"}
    large = {name: size for name, size in sizes.items() if size >= 4 * HUGE_PAGE_BYTES}
    if not large:
        return [], ()
    meaning = "huge spares a page fault per 4 KB of a large fresh output; default leaves it to the system"
    if tuning.text("pages", ("default", "huge"), "huge", "memory", meaning) == "default":
        return [], ()
    return [f"prefer_huge_pages(b_{name}, {size});" for name, size in large.items()], ("huge-pages",)
