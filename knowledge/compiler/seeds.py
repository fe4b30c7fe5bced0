"""The recipes that a search starts from. They differ much, so that their children explore different parts of the
space."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from foundry.knowledge.candidate import ACCURATE, ROUNDED, Choice, Recipe, Unrounded
from foundry.knowledge.compiler.ir.access import reads, writes
from foundry.knowledge.compiler.ir.kernels import ConvKernel, GemmKernel, Plan, TorchCall, Tunable


def seed_recipes(
    base: Recipe, planned: Plan, tunables: Mapping[str, Sequence[Tunable]], unrounded: Unrounded
) -> tuple[Recipe, ...]:
    """Up to seven different recipes, the safest first: defaults; every rewrite, which may leave little of the work;
    products in float32 accuracy; nothing fused; smallest tiles and vectors; larger tiles with every rewrite.

    All of them have accurate products where PyTorch rounds nothing to TF32. If it rounds some products, the defaults
    without accurate ones come second: they are faster, and its own error may leave room for theirs.
    """
    products = {name for name, items in tunables.items() if any(map(more_accurate, items))}
    wanted = products & {*_products_behind(planned, unrounded.means), *_kernels_of(planned, unrounded.products)}
    small = {name: _choose(items, _smallest) for name, items in tunables.items()}
    large = {name: _choose(items, _next_larger) for name, items in tunables.items()}
    start = replace(base, accurate=tuple(sorted({*_ops_of(planned, wanted), *unrounded.products})))
    candidates = [
        start,
        *([base] if wanted != products else []),
        replace(start, rewrites=planned.rewrites),
        replace(base, accurate=tuple(sorted({*_ops_of(planned, products), *unrounded.products}))),
        replace(start, materialise=planned.fused) if planned.fused else start,
        replace(start, choices=_without_empty(small)),
        replace(start, choices=_without_empty(large), rewrites=planned.rewrites),
    ]
    distinct = {recipe.digest: recipe for recipe in reversed(candidates)}
    return tuple(recipe for recipe in candidates if distinct.pop(recipe.digest, None) is not None)


def more_accurate(tunable: Tunable) -> Choice | None:
    """The fastest precision that is more accurate than the default, because a task's tolerance may refuse that one;
    None for any other tunable, and where the default is as accurate as float32."""
    if tunable.aspect != "precision" or tunable.default in ACCURATE:
        return None
    if tunable.default in ROUNDED:
        return next((value for value in tunable.values if value in ACCURATE), None)
    return tunable.values[1] if len(tunable.values) > 1 else None


def _kernels_of(planned: Plan, ops: Collection[str]) -> list[str]:
    """The names of the kernels that compute any of these operators."""
    return [step.name for step in planned.steps if not isinstance(step, TorchCall) and set(step.ops) & set(ops)]


def _ops_of(planned: Plan, kernels: Collection[str]) -> list[str]:
    """The operators that these kernels compute."""
    return [op for step in planned.steps if not isinstance(step, TorchCall) and step.name in kernels for op in step.ops]


def _products_behind(planned: Plan, keys: Collection[str]) -> list[str]:
    """The names of the last products and convolutions that the new values of the state's `keys` come from."""
    wanted = {planned.write_backs[key] for key in keys if key in planned.write_backs}
    found: list[str] = []
    for step in reversed(planned.steps):
        if wanted & writes(step):
            if isinstance(step, ConvKernel | GemmKernel):
                found.append(step.name)
            else:
                wanted |= reads(step)
    return found[::-1]


def _without_empty(choices: dict[str, dict[str, Choice]]) -> dict[str, dict[str, Choice]]:
    """The choices without kernels for which nothing is chosen."""
    return {name: chosen for name, chosen in choices.items() if chosen}


def _choose(tunables: Sequence[Tunable], pick: Callable[[Tunable], Choice | None]) -> dict[str, Choice]:
    """The picked values by tunable, those that are the default left out."""
    chosen: dict[str, Choice] = {}
    for tunable in tunables:
        value = pick(tunable)
        if value is not None and value != tunable.default:
            chosen[tunable.name] = value
    return chosen


def _numbers(tunable: Tunable) -> list[int]:
    """The values as numbers, smallest first; empty for a choice among words."""
    return sorted(value for value in tunable.values if isinstance(value, int))


def _smallest(tunable: Tunable) -> Choice | None:
    """The smallest value of a tile or vector tunable; None for another kind."""
    numbers = _numbers(tunable)
    return numbers[0] if numbers and tunable.aspect in ("tile", "vector") else None


def _next_larger(tunable: Tunable) -> Choice | None:
    """The next value above the default of a tile, vector or memory tunable; None for another kind."""
    larger = [value for value in _numbers(tunable) if isinstance(tunable.default, int) and value > tunable.default]
    return larger[0] if larger and tunable.aspect in ("tile", "vector", "memory") else None
