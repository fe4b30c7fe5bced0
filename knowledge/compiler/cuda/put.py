"""Writes items into a tensor that keeps its other elements, in CUDA. A thread takes the same place within each item,
one item after the other: if several items go to one place, the last one counts."""

from __future__ import annotations

import math

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda.dialect import register_type
from foundry.knowledge.compiler.cuda.launches import Launch, symbol_of
from foundry.knowledge.compiler.cuda.printed import print_launches
from foundry.knowledge.compiler.cuda.space import (
    LARGEST_INT,
    Space,
    collapse,
    decompose,
    indent,
    index_type,
    make_emitter,
    signature_of,
)
from foundry.knowledge.compiler.ir.kernels import Plan, PrintedKernel, SegmentKernel, View
from foundry.knowledge.compiler.ir.views import leaves
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower

_THREADS = 128


def print_put(kernel: SegmentKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """CUDA of a SegmentKernel that writes in place; it has no choices. Raises CannotLower for 2^30 items or places, or
    items of as many elements."""
    assert kernel.key is not None
    inner = math.prod(kernel.shape[1:])
    if max(kernel.items, kernel.shape[0], inner) > LARGEST_INT // 2:
        raise CannotLower(f"writes {kernel.name}: too many items or places, or too large ones")
    stored = [store.value for store in kernel.stores]
    found = leaves([kernel.value, *stored])
    views = list(dict.fromkeys([leaf.view for leaf in found] + [store.view for store in kernel.stores]))
    sizes, strides = collapse(kernel.shape[1:], [view.strides[1:] for view in views])
    where = {v: View(v.offset, (v.strides[0], *s)) for v, s in zip(views, strides, strict=True)}
    names = tuple(f"c{d}" for d in range(len(sizes)))
    index = index_type((max(kernel.shape[0], kernel.items), *sizes), where.values())
    items = Space((kernel.items, *sizes), ("item", *names), where, index)
    places = Space((kernel.shape[0], *sizes), ("place", *names), where, index)
    of_key = leaves([kernel.key])
    seen = {leaf.view: leaf.view for leaf in of_key}
    keys = make_emitter(Space((kernel.items,), ("item",), seen, index_type((kernel.items,), seen)), [], {}, "k")
    key = keys.value(kernel.key)
    read = make_emitter(items, [], {})
    acc = read.value(kernel.value)
    write = make_emitter(places, [], {"acc": "acc"}, "s")
    write.store_all(kernel.stores, places.offset, plan.buffers)
    name = symbol_of(kernel)
    signature, arguments = signature_of(plan, [*of_key, *found], kernel.stores)
    body = [
        f"const {index} column = ({index})blockIdx.x * {_THREADS} + threadIdx.x;",
        f"if (column >= {inner}) return;",
        *(decompose("column", sizes, names, index) if sizes else []),
        f"for ({index} item = 0; item < {kernel.items}; ++item) {{",
        *keys.lines,
        f"const long long wanted = (long long)({key});",
        f"if (wanted < 0 || wanted >= {kernel.shape[0]}) continue;",
        f"const {index} place = ({index})wanted;",
        *read.lines,
        f"const {register_type(kernel.dtype)} acc = {acc};",
        *write.lines,
        "}",
    ]
    head = f"// {kernel.items} items written into {kernel.shape[0]} places."
    start = f'extern "C" __global__ void __launch_bounds__({_THREADS}) {name}'
    known = signature.replace(" __restrict__", "")  # an item may read what one before it wrote
    made = Launch(name, (math.ceil(inner / _THREADS), 1, 1), (_THREADS, 1, 1), tuple(arguments))
    text = f"{head}\n{start}({known}) {{\n{indent(body)}\n}}\n"
    return print_launches(text, [made], Tuning({}), template="put")
