"""Every legal step from a library candidate to a neighbour, each with what a kernel engineer expects of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.compiler.algebra.rewrites import REASONS
from foundry.knowledge.compiler.fusion.state import ANYWHERE
from foundry.knowledge.compiler.ir.kernels import KernelSummary, Tunable
from foundry.knowledge.compiler.lower import outline_of, print_plan
from foundry.knowledge.compiler.lowered import Lowered, Outline
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.thought import Move

_REWRITE_REASONS = REASONS | {
    ANYWHERE: "rows, windows and images are reduced in registers of the product or convolution that makes them: what "
    "is only reduced is never written, and few warps do the work of a kernel of its own",
    "fold-batchnorm": "scale and shift folded to one multiply-add a value: one subtraction and one load less",
    "pointwise-convolution-as-gemm": "a 1x1 convolution is a matrix product: the GEMM tiles reuse each input more",
}


def moves(lowered: Lowered) -> tuple[Move, ...]:
    """All neighbours of a candidate: tunables one step away, values cut or joined, rewrites on or off."""
    found: list[Move] = []
    for kernel in lowered.kernels:
        for tunable in kernel.tunables:
            found += _settings(kernel, tunable)
    found += _fusion_moves(lowered)
    found += _rewrite_moves(lowered)
    return tuple(found)


def _settings(kernel: KernelSummary, tunable: Tunable) -> Iterator[Move]:
    """Yields a move for each neighbouring value of one tunable."""
    present = kernel.choices.get(tunable.name, tunable.default)
    for value in _neighbours(tunable, present):
        yield Move(
            kind="set",
            aspect=tunable.aspect,
            name=tunable.name,
            kernel=kernel.name,
            template=kernel.template,
            value=value,
            was=present,
            reason=_setting_reason(kernel, tunable, present, value),
            unit=tunable.unit,
        )


def _neighbours(tunable: Tunable, present: Choice) -> list[Choice]:
    """The next smaller and the next larger number of a tunable; for words, every other value."""
    others = [value for value in tunable.values if value != present]
    if not isinstance(present, int) or not all(isinstance(value, int) for value in others):
        return others
    numbers = [value for value in others if isinstance(value, int)]
    below = [value for value in numbers if value < present]
    above = [value for value in numbers if value > present]
    return [*([max(below)] if below else []), *([min(above)] if above else [])]


def _setting_reason(kernel: KernelSummary, tunable: Tunable, present: Choice, value: Choice) -> str:
    """The reason of a setting in words: the change, and the tunable's meaning."""
    return f"{tunable.name} {present} to {value} in {kernel.name}: {tunable.meaning}"


# ---------------------------------------------------------------- fusion


def _holder(lowered: Lowered, value: str) -> KernelSummary | None:
    """The kernel whose operators include the one that computes a value; None if no kernel does."""
    plain = re.sub(r"_(copy|scale|shift|each|share)(_t\d+)?$", "", value)
    for kernel in lowered.kernels:
        names = {re.sub(r"\W", "_", name) for name in kernel.ops}
        if value in names or plain in names:
            return kernel
    return None


def _fusion_moves(lowered: Lowered) -> Iterator[Move]:
    """Yields the moves that write a fused value to memory, and those that keep a written value in registers."""
    for value in lowered.fused:
        reason = (
            f"write {value} to memory: two simpler kernels with fewer live values, computed once instead of wherever "
            "it is used, for one more round trip through memory"
        )
        yield name_kernel(lowered, Move("split", "fusion", value, reason=reason))
    for value in lowered.materialised:
        reason = f"keep {value} in registers: one write and one read of it less, and one pass less"
        yield name_kernel(lowered, Move("fuse", "fusion", value, reason=reason))


def name_kernel(lowered: Lowered, move: Move) -> Move:
    """The move with the name of its kernel filled in. Lessons of earlier runs know a split by the kernel's template."""
    if move.kind not in ("split", "fuse"):
        return move
    holder = _holder(lowered, move.name)
    return replace(move, kernel=holder.name if holder else "", template=holder.template if holder else "")


def _rewrite_moves(lowered: Lowered) -> Iterator[Move]:
    """Yields the moves that apply an open rewrite, and those that undo an applied one."""
    for name in lowered.rewrites_open:
        reason = _REWRITE_REASONS[name]
        yield Move(kind="rewrite", aspect="rewrite", name=name, reason=reason)
    for name in lowered.rewrites_applied:
        reason = "back to the reference's own form: its rounding, and another kernel to tune"
        yield Move(kind="unwrite", aspect="rewrite", name=name, reason=reason)


# ---------------------------------------------------------------- recipes


def apply(recipe: Recipe, move: Move) -> Recipe:
    """The neighbour that a move leads to. Raises ValueError for a "set" without a value."""
    if move.kind == "set":
        if move.value is None:
            raise ValueError(f"the move sets {move.name} to nothing")
        choices = {kernel: dict(chosen) for kernel, chosen in recipe.choices.items()}
        choices.setdefault(move.kernel, {})[move.name] = move.value
        return replace(recipe, choices=choices)
    if move.kind == "split":
        return replace(recipe, materialise=tuple(sorted({*recipe.materialise, move.name})))
    if move.kind == "fuse":
        return replace(recipe, materialise=tuple(name for name in recipe.materialise if name != move.name))
    if move.kind == "rewrite":
        return replace(recipe, rewrites=tuple(sorted({*recipe.rewrites, move.name})))
    if move.kind == "tune":
        return recipe
    return replace(recipe, rewrites=tuple(name for name in recipe.rewrites if name != move.name))


def outline(recipe: Recipe, graph: OpGraph, device: Device) -> Outline:
    """The complete recipe and the kernels of a candidate, without its file. Raises CannotLower.

    Recipes that differ only in choices for kernels that a change of structure has removed get the same outline.
    """
    return outline_of(recipe, print_plan(graph, recipe, device))
