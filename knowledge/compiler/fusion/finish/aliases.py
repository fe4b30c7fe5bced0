"""Adds a second name for a buffer of which a kernel reads one region and writes another. Generated code can then
declare the pointer that is read as const and without aliasing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from foundry.knowledge.compiler.ir.access import Step, reads, writes
from foundry.knowledge.compiler.ir.kernels import Buffer, ConvKernel, Gather, Load, TorchCall


def with_aliases(buffers: Mapping[str, Buffer], steps: tuple[Step, ...]) -> tuple[dict[str, Buffer], tuple[Step, ...]]:
    """Adds a second name for each buffer that a kernel both reads and writes, and makes the kernel read by that
    name. Returns the buffers and the steps."""
    known = dict(buffers)
    found: list[Step] = []
    for step in steps:
        both = set() if isinstance(step, TorchCall) else reads(step) & writes(step)
        aliases = {name: _alias(known, name) for name in sorted(both)}
        found.append(_reading(step, aliases) if aliases else step)
    return known, tuple(found)


def _alias(known: dict[str, Buffer], memory: str) -> str:
    """Adds to `known` a second name for a buffer's memory, or reuses an existing one, and returns it."""
    name = next((other.name for other in known.values() if other.memory == memory), f"{memory}_read")
    while name in known and known[name].memory != memory:
        name += "_"
    known[name] = replace(known[memory], name=name, role="temporary", memory=memory)
    return name


def _reading(step: Step, aliases: Mapping[str, str]) -> Step:
    """The step with each load of a buffer in `aliases` renamed."""
    memo: dict[int, Any] = {}

    def visit(item: Any) -> Any:
        """The kernel's parts with loads of these buffers under their second names; a shared part only once."""
        if isinstance(item, tuple):
            return tuple(visit(member) for member in item)
        if not is_dataclass(item) or isinstance(item, type):
            return item
        if id(item) not in memo:
            changes = {entry.name: visit(getattr(item, entry.name)) for entry in fields(item)}
            if isinstance(item, Load | Gather):
                changes["buffer"] = aliases.get(item.buffer, item.buffer)
            memo[id(item)] = replace(item, **changes)
        return memo[id(item)]

    changed: Step = visit(step)
    if isinstance(changed, ConvKernel):
        x, weight = (aliases.get(name, name) for name in (changed.x, changed.weight))
        changed = replace(changed, x=x, weight=weight)
    return changed
