"""Steps, settings, recipes and outcomes in words, as lines for people show them. Keys stay in the trace and in JSON.

A name in these words is the tunable's own, so that a user can say it back: `@tiling unroll 4`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foundry.knowledge.candidate import Choice, Recipe
    from foundry.knowledge.thought import Move

SWITCH = "on/off"  # unit of a number that is 1 for on and 0 for off
MOST_SETTINGS = 4  # that a line names of one step
_KEY = re.compile(r"\b(?:\w+:set:\w+=[\w.-]*\w|(?:split|fuse|rewrite|unwrite):[\w-]*\w)")
OF_KEYS = {"seed": "a first kernel", "source": "a kernel of its own"}
ORIGINS = {
    "library": "the kernel compiler's first kernel",
    "user": "the user's kernel",
    "recalled": "the winner of an earlier run",
    "reference": "the reference itself",
}
STRUCTURE = {
    "split": "{} written to memory",
    "fuse": "{} kept in registers",
    "rewrite": "rewrite {}",
    "unwrite": "without rewrite {}",
    "tune": "the numbers of {} tuned",
}


def spoken(word: str) -> str:
    """An outcome, a failure or a limiter in words: `wrong result` for `wrong_result`."""
    return word.replace("_", " ")


def value_words(value: Choice | None, unit: str = "") -> str:
    """`4096 points`, `1 thread`, `on`, `static`; `-` for no value."""
    if value is None:
        return "-"
    if unit == SWITCH:
        return "on" if value else "off"
    counted = re.sub(r"(?<=ss)es$|s$", "", unit) if value == 1 else unit
    return f"{value} {counted}".rstrip()


def setting_words(name: str, value: Choice | None, unit: str = "") -> str:
    """`chunk 4096 points`, `threads 2`, `stream on`: a unit that the name has already is not repeated."""
    return f"{name} {value_words(value, _unit_beside(name, unit))}"


def change_words(name: str, was: Choice | None, value: Choice | None, unit: str = "") -> str:
    """`unroll 4 -> 8 vectors`."""
    unit = _unit_beside(name, unit)
    before = value_words(was, unit if unit == SWITCH else "")
    return f"{name} {before} -> {value_words(value, unit)}"


def _unit_beside(name: str, unit: str) -> str:
    """The unit, or "" if the name says it already."""
    said = name.lower().split("_")
    return "" if unit and unit.split()[-1].rstrip("s") in {word.rstrip("s") for word in said} else unit


def move_words(move: Move) -> str:
    """One move without its kernel: `unroll 8 vectors`, `relu written to memory`, `rewrite fold-batchnorm`."""
    if move.kind == "set":
        return setting_words(move.name, move.value, move.unit)
    return STRUCTURE[move.kind].format(move.name)


def step_words(moves: Iterable[Move], *, names_kernels: bool = False, most: int = MOST_SETTINGS) -> str:
    """The moves of a step in a phrase, changes of structure first; "" without moves.

    `names_kernels` says whose numbers are set. At most `most` settings are named, the others counted.
    """
    moves = list(moves)
    settings = [move for move in moves if move.kind == "set" and move.value != move.was]  # others are of new kernels
    phrases = [move_words(move) for move in moves if move.kind != "set"]
    by_kernel: dict[str, list[str]] = {}
    for move in settings[:most]:
        by_kernel.setdefault(move.kernel if names_kernels else "", []).append(move_words(move))
    phrases += [", ".join(said) + (f" in {kernel}" if kernel else "") for kernel, said in by_kernel.items()]
    left = len(settings) - most
    return "; ".join(phrases) + (f" and {left} more number{'s' if left > 1 else ''}" if left > 0 else "")


def key_words(key: str) -> str:
    """The key of a move, under which experience is filed, in words: `unroll 4 in row kernels`."""
    if key in OF_KEYS:
        return OF_KEYS[key]
    if setting := re.fullmatch(r"(.*?):set:(.*?)=(.*)", key):
        template, name, value = setting.groups()
        return f"{name} {value} in {re.sub('^authored_.*', 'the same authored', template)} kernels"
    kind, _, name = key.partition(":")
    if kind in ("split", "fuse"):
        name = "a value" if name == "value" else f"a value of a {name} kernel"
    return STRUCTURE[kind].format(name) if kind in STRUCTURE else key


def with_words_for_keys(text: str) -> str:
    """A text in which each key of a move is replaced by its words."""
    return _KEY.sub(lambda found: key_words(found[0]), text)


def choices_words(choices: Mapping[str, Choice]) -> str:
    """All settings of one kernel: `tile 7x3, order rows_outer`."""
    return ", ".join(f"{name} {value}" for name, value in choices.items())


def recipe_lines(recipe: Recipe) -> list[str]:
    """A recipe in full, a line a kernel; `--verbose` shows it."""
    lines = [STRUCTURE["split"].format(name) for name in recipe.materialise]
    lines += [STRUCTURE["rewrite"].format(name) for name in recipe.rewrites]
    return [
        *lines,
        *(f"{kernel}: {choices_words(chosen) or 'no choices'}" for kernel, chosen in recipe.choices.items()),
    ]


def recipe_changes(before: Recipe | None, after: Recipe | None) -> list[str]:
    """Each change of structure, kernel and setting between two recipes, a line each."""
    if before is None or after is None:
        return []
    lines = structure_changes(before, after)
    for kernel in sorted(before.choices.keys() | after.choices.keys()):
        old, new = before.choices.get(kernel), after.choices.get(kernel)
        if old is None or new is None:
            lines.append(f"kernel {kernel} {'is new' if old is None else 'is gone'}: {choices_words(old or new or {})}")
            continue
        names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        lines += [f"{change_words(name, old.get(name), new.get(name))} in {kernel}" for name in names]
    return lines


def origin_words(origin: str, recipe: Recipe | None = None, first: Recipe | None = None) -> str:
    """The origin of a first candidate, and how its recipe differs from the first one's of the run.

    `origin` is the reason that its record has: "library", "user", "reference" or "recalled x12".
    """
    if origin != "library":
        kind, _, record = origin.partition(" ")
        return ORIGINS.get(kind, origin) + (f" ({record})" if record else "")
    if recipe is None or first is None or recipe == first:
        return ORIGINS[origin]
    return f"another first kernel, {', '.join(structure_changes(first, recipe)) or 'with other numbers'}"


def structure_changes(before: Recipe, after: Recipe) -> list[str]:
    """The values that are written or kept and the rewrites that differ."""
    changes: Sequence[tuple[str, tuple[str, ...], tuple[str, ...]]] = (
        ("split", after.materialise, before.materialise),
        ("fuse", before.materialise, after.materialise),
        ("rewrite", after.rewrites, before.rewrites),
        ("unwrite", before.rewrites, after.rewrites),
    )
    return [STRUCTURE[kind].format(name) for kind, ours, theirs in changes for name in ours if name not in theirs]
