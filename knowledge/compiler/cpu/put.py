"""Writes items into a tensor that keeps its other elements, on the CPU: item by item in their order, neighbouring
elements in vectors."""

from __future__ import annotations

import math

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.loops import loops_over
from foundry.knowledge.compiler.cpu.space import Space, choose_threads, indent, list_parameters, register_type
from foundry.knowledge.compiler.ir.kernels import Plan, PrintedKernel, SegmentKernel
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, Emitter, affine, loader
from foundry.knowledge.compiler.ir.views import views_of
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import ITEM_BYTES


def print_put(kernel: SegmentKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """C++ of a SegmentKernel that writes in place. `choices` may hold "threads". A thread takes the same neighbours of
    each item, so if several items go to one place, the last one counts."""
    assert kernel.key is not None
    tuning = Tuning(choices)
    stored = [store.value for store in kernel.stores]
    values = [kernel.value, *stored]
    views = [*views_of(values), *[store.view for store in kernel.stores]]
    space = Space.merge((2, *kernel.shape[1:]), views, barriers=[1])  # items, or places, come first
    inner = space.sizes[1:]
    moved = 2 * kernel.items * math.prod(inner) * ITEM_BYTES[kernel.dtype]
    threads = choose_threads(tuning, device, moved) if inner else ""
    names = [f"o{d}" for d in range(len(inner))]
    keys = Emitter(CPU_DIALECT, loader(CPU_DIALECT, lambda view: affine(view.offset, [(view.strides[0], "item")])))
    key = keys.value(kernel.key)
    read = Emitter(CPU_DIALECT, loader(CPU_DIALECT, space.offset(["item", *names])))
    acc = read.value(kernel.value)
    written = space.offset(["place", *names])
    write = Emitter(CPU_DIALECT, loader(CPU_DIALECT, written), {"acc": "acc"}, prefix="s")
    write.store_all(kernel.stores, written, plan.buffers)
    point = [*read.lines, f"const {register_type(kernel.dtype)} acc = {acc};", *write.lines]
    heads = loops_over("o", inner)
    shared = [f"#pragma omp for schedule(static) nowait{f' collapse({len(heads) - 1})' if len(heads) > 2 else ''}"]
    loops = [*(shared if len(heads) > 1 else []), *heads[:-1], *(["#pragma omp simd"] if heads else []), *heads[-1:]]
    body = [
        *([f"#pragma omp parallel{threads}"] if len(heads) > 1 else []),
        f"for (int64_t item = 0; item < {kernel.items}; ++item) {{",
        indent([*keys.lines, f"const int64_t place = (int64_t)({key});"], 1),
        f"  if ((uint64_t)place >= {kernel.shape[0]}) continue;",
        indent([*loops, "{", indent(point, 1), "}"], 1),
        "}",
    ]
    declared, passed = list_parameters([kernel.key, *values], kernel.stores, plan)
    head = f"// {kernel.name}: {kernel.items} items written into {kernel.shape[0]} places"
    signature = declared.replace(" __restrict", "")  # an item may read what one before it wrote
    return PrintedKernel(
        functions=f"{head}\nstatic void {kernel.name}({signature}) {{\n{indent(body, 1)}\n}}\n",
        call=f"{kernel.name}({passed});",
        template="put",
        choices=tuning.values,
        tunables=tuple(tuning.tunables),
    )
