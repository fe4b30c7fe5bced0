"""Marks kernels whose inputs are parameters only, so that they run again only when a parameter has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from foundry.knowledge.compiler.ir.access import Step, loaded_names, reads, writes
from foundry.knowledge.compiler.ir.kernels import Buffer, Expr, GemmKernel, GroupedKernel, TorchCall

_FIXED = ("parameter", "prepared")


def with_prepared(buffers: dict[str, Buffer], steps: Sequence[Step]) -> dict[str, Buffer]:
    """The buffers, with role "prepared" for those that our kernels fill from parameters alone and that only kernels
    of ours read."""
    called = {name for step in steps if isinstance(step, TorchCall) for name in reads(step) | writes(step)}
    able = [step for step in steps if not isinstance(step, TorchCall)]
    while True:
        made = {name for step in able for name in writes(step)}
        others = {name for step in steps if step not in able for name in writes(step)}
        free = {
            name for name in made - others - called if buffers[name].role == "temporary" and not buffers[name].source
        }
        known = free | {name for name, buffer in buffers.items() if buffer.role in ("parameter", "constant")}
        left = [step for step in able if writes(step) <= free and reads(step) <= known and reads(step)]
        if len(left) == len(able):
            return {name: replace(item, role="prepared") if name in free else item for name, item in buffers.items()}
        able = left


def note_constants(step: Step, buffers: Mapping[str, Buffer]) -> Step:
    """The step; a matrix product has each operand that is made of parameters only marked as constant."""
    if not isinstance(step, GemmKernel | GroupedKernel):
        return step

    def is_fixed(expr: Expr) -> bool:
        """True if an expression reads parameters only, and at least one."""
        names = loaded_names(expr)
        return bool(names) and all(buffers[name].role in _FIXED for name in names)

    if isinstance(step, GroupedKernel):
        return replace(step, constant_b=is_fixed(step.b))
    return replace(step, constant_a=is_fixed(step.a), constant_b=is_fixed(step.b))
