"""Steps beyond the kernel compiler's own neighbours: far values of a tunable, and moves that lead towards another
recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foundry.knowledge.candidate import ACCURATE, ROUNDED, Choice, Recipe
from foundry.knowledge.compiler.ir.kernels import KernelSummary, Tunable
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.compiler.moves import name_kernel
from foundry.knowledge.thought import Move


def setting(kernel: KernelSummary, tunable: Tunable, value: Choice) -> Move:
    """The move that gives a kernel's tunable this value; its reason is the tunable's meaning."""
    was = kernel.choices.get(tunable.name, tunable.default)
    return Move(
        kind="set",
        aspect=tunable.aspect,
        name=tunable.name,
        kernel=kernel.name,
        template=kernel.template,
        value=value,
        was=was,
        reason=tunable.meaning,
        unit=tunable.unit,
    )


def accurate_settings(lowered: Lowered) -> tuple[Move, ...]:
    """The moves that make each product in TF32 as accurate as float32, the fastest way."""
    return tuple(
        setting(kernel, tunable, value)
        for kernel in lowered.kernels
        for tunable in kernel.tunables
        if tunable.aspect == "precision" and kernel.choices.get(tunable.name, tunable.default) in ROUNDED
        for value in [item for item in tunable.values if item in ACCURATE][:1]
    )


def far_settings(lowered: Lowered, near: Sequence[Move]) -> list[Move]:
    """Legal values that are more than one step away: what experience or a stagnating search may jump to."""
    known = {(move.kernel, move.name, move.value) for move in near if move.kind == "set"}
    return [
        setting(kernel, tunable, value)
        for kernel in lowered.kernels
        for tunable in kernel.tunables
        for value in tunable.values
        if value != kernel.choices.get(tunable.name, tunable.default)
        and (kernel.name, tunable.name, value) not in known
    ]


def moves_towards(lowered: Lowered, recipe: Recipe) -> Iterator[Move]:
    """Yields the moves, each one step, that bring a candidate nearer to another recipe of the same graph.

    They change its rewrites, split points and values of tunables. Moves that this candidate does not allow are left
    out.
    """
    for rewrite in lowered.rewrites_applied:
        if rewrite not in recipe.rewrites:
            yield Move("unwrite", "rewrite", rewrite)
    for rewrite in recipe.rewrites:
        if rewrite in lowered.rewrites_open:
            yield Move("rewrite", "rewrite", rewrite)
    for value in lowered.materialised:
        if value not in recipe.materialise:
            yield name_kernel(lowered, Move("fuse", "fusion", value))
    for value in recipe.materialise:
        if value in lowered.fused:
            yield name_kernel(lowered, Move("split", "fusion", value))
    for kernel in lowered.kernels:
        theirs = recipe.choices.get(kernel.name, {})
        for tunable in kernel.tunables:
            mine = kernel.choices.get(tunable.name, tunable.default)
            wanted = theirs.get(tunable.name, mine)
            if wanted != mine and wanted in tunable.values:
                yield setting(kernel, tunable, wanted)
