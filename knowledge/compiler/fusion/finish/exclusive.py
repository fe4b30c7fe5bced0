"""Rewrites a running sum or product stored one place later, after a constant zero or one, as one exclusive scan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import Step
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Buffer,
    Const,
    Load,
    MapKernel,
    Named,
    ScanKernel,
    Store,
    View,
)

_BEGINS_WITH = {"sum": 0.0, "prod": 1.0}


def exclusive_scans(steps: Sequence[Step], buffers: Mapping[str, Buffer]) -> list[Step]:
    """Makes a scan also write its first element where a separate map wrote a constant there, and drops that map. The
    rows then start aligned, so that vector stores fit again."""
    found = list(steps)
    for scan in [step for step in steps if isinstance(step, ScanKernel)]:
        head = next((step for step in found if isinstance(step, MapKernel) and _is_head(step, scan, buffers)), None)
        if head is None:
            continue
        (store,) = scan.stores
        whole = replace(store, view=View(store.view.offset - store.view.strides[-1], store.view.strides))
        shape = (*scan.shape[:-1], scan.shape[-1] + 1)
        found[found.index(scan)] = replace(scan, shape=shape, stores=(whole,), exclusive=True)
        found.remove(head)
    return found


def _is_head(head: MapKernel, scan: ScanKernel, buffers: Mapping[str, Buffer]) -> bool:
    """True if the map writes the scan's initial value one place before each row of the scan, and the scan may read
    one element more."""
    if scan.exclusive or scan.reverse or scan.op not in _BEGINS_WITH or len(head.stores) != 1 or len(scan.stores) != 1:
        return False
    first, store = head.stores[0], scan.stores[0]
    begins = isinstance(first.value, Const) and first.value.value == _BEGINS_WITH[scan.op]
    same = first.buffer == store.buffer and first.view.offset == store.view.offset - store.view.strides[-1]
    rows = views.merge_dimensions(scan.shape[:-1], store.view.strides[:-1])
    return (
        begins
        and same
        and _is_plain(store)
        and views.merge_dimensions(head.shape, first.view.strides) == rows
        and all(_holds_one_more(node, scan, buffers) for node in views.nodes(scan.value))
    )


def _is_plain(store: Store) -> bool:
    """True if the running total is stored unchanged, but for a cast."""
    value = store.value
    if isinstance(value, Apply) and value.op == "cast":
        (value,) = value.args
    return isinstance(value, Named)


def _holds_one_more(node: object, scan: ScanKernel, buffers: Mapping[str, Buffer]) -> bool:
    """True if a load of one element past each row stays inside its buffer. The value read is never used."""
    if not isinstance(node, Load):
        return isinstance(node, Apply | Const)
    buffer = buffers[node.buffer]
    last = sum((size - 1) * stride for size, stride in zip(buffer.shape, buffer.strides, strict=True))
    sizes = (*scan.shape[:-1], scan.shape[-1] + 1)
    reach = [(size - 1) * stride for size, stride in zip(sizes, node.view.strides, strict=True)]
    low = node.view.offset + sum(min(0, way) for way in reach)
    return low >= 0 and node.view.offset + sum(max(0, way) for way in reach) <= last
