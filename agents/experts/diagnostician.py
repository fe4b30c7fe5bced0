"""The diagnostician: turns failures into a diagnosis and repairs broken candidates.

A broken library candidate differs from one that worked in a few choices. The repair undoes one of them, the most
suspicious for this failure first; without a working relative it steps back towards the templates' defaults, and then to
structures that have not been tried. Where an answer is inaccurate and products are in TF32, all of these become
accurate in one step: the structure stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from foundry.agents.brief import Brief
from foundry.agents.expert import Expert
from foundry.agents.situation import Situation
from foundry.agents.steps import accurate_settings, moves_towards, setting
from foundry.knowledge.candidate import ROUNDED, Evaluation, Recipe
from foundry.knowledge.cards import cards
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.compiler.moves import name_kernel
from foundry.knowledge.thought import Move

WITHOUT = {"unwrite": "without it", "rewrite": "with it", "fuse": "with it fused", "split": "with it in memory"}
REPAIRABLE_BY_SIZE = ("compile_error", "launch_failure", "crash", "timeout")


@dataclass(frozen=True)
class Suspect:
    """A choice of the broken candidate: the move that undoes it, how suspicious it is, and the reason."""

    move: Move
    suspicion: float
    because: str


def suspects(brief: Brief, lowered: Lowered, failure: str) -> list[Suspect]:
    """Choices to undo, the most suspicious first. Ties are broken by name, so that the order is the same each time."""
    found = list(_against_defaults(lowered, failure))
    relative = nearest_working(brief, lowered.recipe)
    if relative is not None and relative.candidate.recipe is not None:
        differences = list(_against(lowered, relative.candidate.recipe, relative.candidate.id))
        known = {_identity(suspect.move) for suspect in differences}
        # A choice that also works elsewhere is hardly the cause.
        found = differences + [
            Suspect(item.move, 0.2 * item.suspicion, item.because)
            for item in found
            if _identity(item.move) not in known
        ]
    card = cards()[failure]
    weighted = [Suspect(item.move, item.suspicion * card.weight(item.move.aspect), item.because) for item in found]
    return sorted(weighted, key=lambda item: (-item.suspicion, _identity(item.move), str(item.move.value)))


def without_tf32(brief: Brief, lowered: Lowered) -> tuple[Suspect, ...]:
    """The settings that make an inaccurate candidate's TF32 products as accurate as float32.

    Leaves out kernels that a working relative also has in TF32.
    """
    relative = nearest_working(brief, lowered.recipe)
    works = relative.candidate.recipe.rounded if relative and relative.candidate.recipe else ()
    because = "TF32 keeps 11 bits of each operand, and PyTorch's own error leaves no room for that"
    return tuple(Suspect(move, 3.0, because) for move in accurate_settings(lowered) if move.kernel not in works)


def nearest_working(brief: Brief, recipe: Recipe) -> Evaluation | None:
    """The correct elite whose recipe differs in the fewest choices; None if there is none."""
    working = [
        item for item in brief.elites if item.verdict is not None and item.verdict.correct and item.candidate.recipe
    ]
    return min(working, key=lambda item: (distance(recipe, item.candidate.recipe), item.candidate.id), default=None)


def distance(one: Recipe, other: Recipe | None) -> int:
    """The number of choices in which two recipes differ."""
    if other is None:
        return 1 << 30
    structure = set(one.materialise) ^ set(other.materialise) | set(one.rewrites) ^ set(other.rewrites)
    return len(structure) + len(set(_flat(one)) ^ set(_flat(other)))


def _flat(recipe: Recipe) -> list[tuple[str, str, str]]:
    """The recipe's choices as (kernel, tunable, value)."""
    return [(kernel, name, str(value)) for kernel, chosen in recipe.choices.items() for name, value in chosen.items()]


def _identity(move: Move) -> tuple[str, str, str]:
    """The thing that a move changes, so that two moves on the same thing compare equal."""
    return move.kind if move.kind == "set" else "structure", move.kernel, move.name


def _against(lowered: Lowered, working: Recipe, name: str) -> Iterator[Suspect]:
    """Yields the differences from a recipe that worked, each with the move that undoes it."""
    for move in moves_towards(lowered, working):
        because = f"{name} works with {move.value}" if move.kind == "set" else f"{name} works {WITHOUT[move.kind]}"
        yield Suspect(move, 1.5 if move.aspect == "fusion" else 2.0, because)


def _against_defaults(lowered: Lowered, failure: str) -> Iterator[Suspect]:
    """Choices that differ from their defaults; after an exceeded limit or a crash also the next smaller value of each
    size."""
    is_wrong = failure in ("inaccurate", "wrong_result")
    for rewrite in lowered.rewrites_applied:
        yield Suspect(Move("unwrite", "rewrite", rewrite), 0.8, "the graph as the reference writes it")
    for kernel in lowered.kernels:
        for tunable in kernel.tunables:
            mine = kernel.choices.get(tunable.name, tunable.default)
            if mine != tunable.default and not (is_wrong and tunable.default in ROUNDED):
                move = setting(kernel, tunable, tunable.default)
                yield Suspect(move, 1.0, f"{tunable.default} is the template's default")
            smaller = [
                value for value in tunable.values if isinstance(value, int) and isinstance(mine, int) and value < mine
            ]
            if smaller and failure in REPAIRABLE_BY_SIZE and tunable.aspect in ("tile", "vector", "memory"):
                move = setting(kernel, tunable, max(smaller))
                yield Suspect(move, 0.7, "smaller sizes need fewer registers, less memory and shorter tails")
    if is_wrong:
        yield from _safer(lowered)
    if failure not in REPAIRABLE_BY_SIZE:
        yield from _other_structures(lowered)


def _other_structures(lowered: Lowered) -> Iterator[Suspect]:
    """Structures that have not been tried, for where no smaller change helps."""
    for value in lowered.fused:
        yield Suspect(name_kernel(lowered, Move("split", "fusion", value)), 0.2, "a simpler kernel for each part")
    for rewrite in lowered.rewrites_open:
        yield Suspect(Move("rewrite", "rewrite", rewrite), 0.1, "another way to compute the same")


def _safer(lowered: Lowered) -> Iterator[Suspect]:
    """Other values of the tunables that decide in which order sums are formed, and no less accurate precision."""
    for kernel in lowered.kernels:
        for tunable in kernel.tunables:
            is_sum = "accum" in tunable.name.lower() or tunable.aspect in ("precision", "algorithm")
            mine = kernel.choices.get(tunable.name, tunable.default)
            for value in tunable.values if is_sum else ():
                larger = isinstance(value, int) and isinstance(mine, int) and value > mine
                if value != mine and value not in ROUNDED and (larger or isinstance(value, str)):
                    move = setting(kernel, tunable, value)
                    yield Suspect(move, 0.6, "sums in shorter chains round less" if larger else "another way to sum")


def undoes(move: Move, situation: Situation) -> str:
    """The move as a sentence."""
    if move.kind == "set":
        return f"set {move.name} of {move.kernel} back from {move.was} to {move.value}"
    verb = {"split": "write to memory", "fuse": "keep fused", "rewrite": "apply", "unwrite": "take back the rewrite"}
    return f"{verb[move.kind]} {move.name}"


EXPERT = Expert(
    name="diagnostician",
    mandate="Say what broke or limits a candidate, with evidence and one action; repair what is broken.",
    prompt="diagnostician",
    aspects={
        "tile": 1.0,
        "vector": 1.0,
        "memory": 1.0,
        "parallel": 1.0,
        "algorithm": 1.0,
        "fusion": 1.0,
        "rewrite": 1.0,
        "precision": 1.0,
    },
    answers={
        "compile_error": 3.0,
        "launch_failure": 3.0,
        "crash": 3.0,
        "timeout": 3.0,
        "wrong_result": 3.0,
        "inaccurate": 3.0,
        "nondeterministic": 3.0,
        "stale_weights": 3.0,
        "cheating": 3.0,
        "not_allowed": 3.0,
        "not_judged": 3.0,
    },
    calls=("compile", "check", "quick_time", "profile", "sass", "show", "history"),
)
