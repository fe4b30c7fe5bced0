"""The recipes that a search starts from. They differ much, so that their children explore different parts of the
space."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.compiler.ir.access import reads, writes
from foundry.knowledge.compiler.ir.kernels import ConvKernel, GemmKernel, Plan, Tunable


def seed_recipes(
    base: Recipe, planned: Plan, tunables: Mapping[str, Sequence[Tunable]], unrounded: Collection[str] = ()
) -> tuple[Recipe, ...]:
    """Up to seven recipes, the safest first: defaults; every rewrite, which may leave little of the work; products in
    float32 accuracy; nothing fused; smallest tiles and vectors; larger tiles with every rewrite. Before all of them,
    where forward updates the state's keys `unrounded` and PyTorch's values of these are more accurate than TF32's: the
    defaults with accurate products where those values come from. Equal ones are dropped."""
    accurate = {name: _choose(items, _more_accurate) for name, items in tunables.items()}
    small = {name: _choose(items, _smallest) for name, items in tunables.items()}
    large = {name: _choose(items, _next_larger) for name, items in tunables.items()}
    first = {name: accurate.get(name, {}) for name in _products_behind(planned, unrounded)}
    candidates = [
        replace(base, choices=_without_empty(first)),
        base,
        replace(base, rewrites=planned.rewrites),
        replace(base, choices=_without_empty(accurate)),
        replace(base, materialise=planned.fused) if planned.fused else base,
        replace(base, choices=_without_empty(small)),
        replace(base, choices=_without_empty(large), rewrites=planned.rewrites),
    ]
    distinct = {recipe.digest: recipe for recipe in reversed(candidates)}
    return tuple(recipe for recipe in candidates if distinct.pop(recipe.digest, None) is not None)


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
    return {name: chosen for name, chosen in choices.items() if chosen}


def _choose(tunables: Sequence[Tunable], pick: Callable[[Tunable], Choice | None]) -> dict[str, Choice]:
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
    numbers = _numbers(tunable)
    return numbers[0] if numbers and tunable.aspect in ("tile", "vector") else None


def _next_larger(tunable: Tunable) -> Choice | None:
    larger = [value for value in _numbers(tunable) if isinstance(tunable.default, int) and value > tunable.default]
    return larger[0] if larger and tunable.aspect in ("tile", "vector", "memory") else None


def _more_accurate(tunable: Tunable) -> Choice | None:
    """The next more accurate precision after the default, because a task's tolerance may refuse the fastest one."""
    return tunable.values[1] if tunable.aspect == "precision" and len(tunable.values) > 1 else None
