"""The texts that a search begins with: winners of earlier runs, the kernel compiler's, the user's."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path

from foundry.agents.models.models import PLAYBOOK
from foundry.graph.run.inbox import in_force
from foundry.graph.run.services import Services
from foundry.graph.search.lessons import localise, query, winners
from foundry.knowledge.candidate import NOWHERE, Recipe, Unrounded
from foundry.knowledge.errors import CannotLower, LeavesToTorch, UsageError
from foundry.knowledge.opgraph import OpGraph

RECALLED_SEEDS = 2
FEWEST_SEEDS = 3  # first candidates that are prepared at least, in case the first ones are wrong
ARITHMETIC = "arithmetic"  # the note's name

FirstText = tuple[str, Recipe | None, str]  # (text, recipe, reason)


async def first_texts(services: Services, lowerable: bool) -> tuple[list[FirstText], list[FirstText], str]:
    """(first texts, further ones if none of these is correct, why the kernel compiler has none or "").

    The order: winners of earlier runs, which were proven on this graph and device; the kernel compiler's safest; the
    user's starting kernel; the rest of the kernel compiler's.
    """
    library: list[FirstText] = []
    problem, count = "", services.effort.seeds
    if lowerable:
        count, library, problem = await _library_texts(services)
    start = services.task.options.start
    users: list[FirstText] = [(_read_start(start, services), None, "user")] if start else []
    recalled = await _recall_winners(services) if await services.graphs() else []
    return [*recalled, *library[:1], *users, *library[1:count]], library[count:], problem


async def _library_texts(services: Services) -> tuple[int, list[FirstText], str]:
    """(number of first texts, first and further texts in one list, why there is none or "")."""
    library: list[FirstText] = []
    count, refused, graphs = services.effort.seeds, None, await services.graphs()
    try:
        recipes = await _recipes(graphs[0], services)
    except CannotLower as error:
        return count, [], _no_first(error, services)
    if count == 1:
        count += sum(1 for _ in itertools.takewhile(partial(_may_be_faster, recipes[0]), recipes[1:3]))
    for recipe in recipes:
        if len(library) == max(count, FEWEST_SEEDS):
            break
        try:
            lowered = await services.lower_to_try(as_asked(recipe, services))
        except CannotLower as error:
            refused = refused or error
        else:
            library.append((lowered.source, lowered.recipe, "library"))
    return count, library, _no_first(refused, services) if refused and not library else ""


def _may_be_faster(first: Recipe, other: Recipe) -> bool:
    """True if a recipe has rewrites, which may save most of the work, or uses TF32 where the first one does not."""
    return bool(other.rewrites) or (bool(first.accurate) and not other.accurate)


def _no_first(error: CannotLower, services: Services) -> str:
    """The reason why the kernel compiler has no first candidate, and what the user can do."""
    ways = [] if services.brain.name != PLAYBOOK else ["a chat model may write one (--model NAME)"]
    ways += ["--policy open lets PyTorch do its part"] if isinstance(error, LeavesToTorch) else []
    return "; ".join([f"the kernel compiler cannot write this task: {error}", *ways])


async def _recipes(graph: OpGraph, services: Services) -> tuple[Recipe, ...]:
    """The kernel compiler's first recipes, as accurate as PyTorch: they use no TF32 in products where it uses none."""
    unrounded = await _unrounded(graph, services)
    if (words := unrounded.words(graph)) and services.task.options.policy != "strict":
        services.log.note_once("note", ARITHMETIC, reason=f"{words}: the first kernels do so too")
    return services.library.seeds(graph, services.device, unrounded)


async def _unrounded(graph: OpGraph, services: Services) -> Unrounded:
    """The values that PyTorch computes more accurately than TF32 here; none on a device without TF32."""
    if not services.device.present or not services.device.traits.has_tf32:
        return NOWHERE
    return (await services.measure.baseline()).unrounded_in(graph)


async def accurate_text(recipe: Recipe, services: Services) -> FirstText | None:
    """The recipe's structure with all products as accurate as float32; None if that cannot be lowered."""
    kernels = [kernel for kernel in (await services.lower(recipe)).kernels if kernel.name in recipe.rounded]
    choices = {name: chosen for name, chosen in recipe.choices.items() if name not in recipe.rounded}
    ops = {op for kernel in kernels for op in kernel.ops}
    try:
        lowered = await services.lower_to_try(
            replace(recipe, choices=choices, accurate=tuple(sorted({*recipe.accurate, *ops})))
        )
    except CannotLower:
        return None
    return None if lowered.recipe.rounded else (lowered.source, lowered.recipe, "library")


async def _recall_winners(services: Services) -> list[FirstText]:
    """Recipes that won an earlier run on this graph and device, with kernels named as in this capture."""
    graphs = await services.graphs()
    answer = await services.recall("recall", query(graphs[0], services.device), k=24)
    found: list[FirstText] = []
    unrounded = await _unrounded(graphs[0], services)
    for hit in winners(answer.hits, graphs[0], services.device, RECALLED_SEEDS):
        recipe = hit.record.recipe
        if recipe is None:
            continue
        try:
            recipe = replace(as_asked(recipe, services), accurate=unrounded.products)
            bare = await services.lower(replace(recipe, choices={}))
            lowered = await services.lower_to_try(localise(recipe, bare.kernels))
        except CannotLower as error:
            services.log.note_once("note", "recalled recipe does not fit", record=hit.record.id, reason=str(error))
            continue
        found.append((lowered.source, lowered.recipe, f"recalled x{hit.record.id}"))
    return found


def _read_start(start: str, services: Services) -> str:
    """The text of the user's starting kernel, beside the task. Raises UsageError."""
    path = Path(services.task.path).parent / start
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the starting kernel {path}: {error}") from error


def as_asked(recipe: Recipe, services: Services) -> Recipe:
    """The recipe under the task's policy, without the rewrites that the user does not want."""
    said = {
        str(item.command.get("name", "")): item.verb for item in in_force(services.directives()) if item.island is None
    }
    unwanted = [name for name, verb in said.items() if verb == "drop"]
    kept = tuple(name for name in recipe.rewrites if not any(word in name for word in unwanted))
    return replace(recipe, rewrites=kept, ieee_only=services.task.options.policy == "strict")
