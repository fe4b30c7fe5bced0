"""Long bodies over interleaved elements: those that a compiler cannot cut into vectors are first copied into arrays.

GCC reads groups of 2, 3, 4, 8 and 16 consecutive elements by shuffling whole vectors. A loop that reads or writes other
groups, such as sevens or parts of a group, stays scalar as a whole. 26,000 arms of seven joints took 0.97 ms, and 0.16
ms through arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.cpu.space import element_type, indent, register_type
from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.kernels import Load, MapKernel, Plan, View
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, loader

_GROUPS = (2, 3, 4, 8, 16)
_STAGE_BYTES = 16 * 1024  # bytes of all arrays: half of an L1 of 32 KB
_FEWEST, _MOST = 32, 256  # points of an array


@dataclass(frozen=True)
class StagedElements:
    """Loads, and stores by their number, that go through arrays of `points` points."""

    loads: tuple[Load, ...]
    stores: tuple[int, ...]
    points: int


def find_staging(kernel: MapKernel, step: Callable[[View], int]) -> StagedElements | None:
    """The loads and stores to stage through arrays; None without any. `step`: a view's stride in elements from point to
    point."""
    found = [node for node in views.nodes(*(store.value for store in kernel.stores)) if isinstance(node, Load)]
    loads = list(dict.fromkeys(load for load in found if abs(step(load.view)) > 1))
    scattered = [slot for slot, store in enumerate(kernel.stores) if abs(step(store.view)) > 1]
    read = _whole_groups([(load.buffer, load.view) for load in loads], step)
    written = _whole_groups([(kernel.stores[slot].buffer, kernel.stores[slot].view) for slot in scattered], step)
    staged = [load for load in loads if (load.buffer, step(load.view)) not in read]
    slots = [slot for slot in scattered if (kernel.stores[slot].buffer, step(kernel.stores[slot].view)) not in written]
    if not staged and not slots:
        return None
    points = _STAGE_BYTES // (4 * (len(staged) + len(slots)))
    return StagedElements(tuple(staged), tuple(slots), max(_FEWEST, min(_MOST, points // _FEWEST * _FEWEST)))


def _whole_groups(accesses: Sequence[tuple[str, View]], step: Callable[[View], int]) -> set[tuple[str, int]]:
    """(buffer, step) of accesses that together take every element of a group; compilers vectorise these well."""
    offsets: dict[tuple[str, int], set[int]] = {}
    for buffer, view in accesses:
        offsets.setdefault((buffer, step(view)), set()).add(view.offset)
    return {key for key, places in offsets.items() if key[1] in _GROUPS and _fill(places, key[1])}


def _fill(places: set[int], size: int) -> bool:
    """True if the places form whole runs of `size` consecutive elements."""
    left = sorted(places)
    while left:
        run = left[:size]
        if len(run) < size or run[-1] - run[0] != size - 1:
            return False
        left = left[size:]
    return True


def staged_sweep(
    kernel: MapKernel,
    plan: Plan,
    staging: StagedElements,
    at: Callable[[View, str], str],
    begin: str,
    end: str,
    simd: str,
) -> list[str]:
    """C++ loop over blocks of points from `begin` to `end`: copies loads into arrays, calls the lambda `point` with
    results and staged values, and copies staged results to memory."""
    count, value = staging.points, loader(CPU_DIALECT, lambda view: at(view, "(i + l)"))
    loop = "for (int64_t l = 0; l < count; ++l)"
    results, after = [], []
    arrays = [
        f"alignas(64) {register_type(load.dtype)} g{number}[{count}];" for number, load in enumerate(staging.loads)
    ]
    for slot, store in enumerate(kernel.stores):
        target = f"b_{store.buffer}[{at(store.view, '(i + l)')}]"
        if slot in staging.stores:
            arrays.append(f"alignas(64) {element_type(plan, store.buffer)} y{slot}[{count}];")
            after.append(f"{target} = y{slot}[l];")
        results.append(f"y{slot}[l]" if slot in staging.stores else target)
    before = [f"g{number}[l] = {value(load)};" for number, load in enumerate(staging.loads)]
    arguments = ", ".join([*results, *(f"g{number}[l]" for number in range(len(staging.loads)))])
    body = [f"const int64_t count = {end} - i < {count} ? {end} - i : {count};", *arrays]
    body += [f"{loop} {{", indent(before, 1), "}"] if before else []
    body += [simd, f"{loop} point(i + l, {arguments});"]
    body += [f"{loop} {{", indent(after, 1), "}"] if after else []
    return [f"for (int64_t i = {begin}; i < {end}; i += {count}) {{", indent(body, 1), "}"]
