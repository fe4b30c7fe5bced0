"""The demands of a user's directives on one candidate: moves that it still needs, and moves that are forbidden.

A directive to one expert binds the others too: the fusion expert may not undo a value that tiling was told to set. A
later directive replaces an earlier one about the same thing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from foundry.agents.steps import setting
from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.ir.kernels import KernelSummary, Tunable
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.thought import Directive, Move

# What a user calls a tunable -> parts of the names printers give it, most likely first.
WORDS: dict[str, tuple[str, ...]] = {
    "block": ("block", "tile", "chunk"),
    "tile": ("tile", "block"),
    "chunk": ("chunk", "block", "grain"),
    "unroll": ("unroll",),
    "vector": ("vector", "vec", "simd", "width", "lanes"),
    "width": ("width", "vector", "vec"),
    "thread": ("thread", "team", "cores"),
    "threads": ("thread", "team", "cores"),
    "warp": ("warp",),
    "stage": ("stage", "pipeline", "prefetch"),
    "pipeline": ("pipeline", "stage"),
    "prefetch": ("prefetch", "stage"),
    "accumulators": ("accum", "lanes", "unroll"),
}
_EVERYTHING = frozenset({"all", "everything", "epilogue", "it"})


def applies(directive: Directive, island: int) -> bool:
    """True if the directive is a command (not free text) about candidates of this island."""
    return directive.island in (None, island) and directive.to != "run" and bool(directive.command)


def find_tunables(lowered: Lowered, word: str, kernel: str = "") -> list[tuple[KernelSummary, Tunable]]:
    """Tunables that a word may mean: those with this name; else those with a part of the name that begins so; else by
    synonym; else by aspect."""
    pairs = [
        (summary, tunable)
        for summary in lowered.kernels
        if not kernel or kernel in (summary.name.lower(), summary.template)
        for tunable in summary.tunables
    ]
    singular = word.rstrip("s")
    parts = WORDS.get(word, WORDS.get(singular, ()))
    by_part = [[pair for pair in pairs if _begins(pair[1].name, part)] for part in (word, singular, *parts)]
    tries = [
        [pair for pair in pairs if pair[1].name.lower() == word],
        *by_part,
        [pair for pair in pairs if pair[1].aspect in (word, singular)],
    ]
    return next((found for found in tries if found), [])


def _begins(name: str, part: str) -> bool:
    """True if a piece of a tunable's name (`tile` and `m` of `tile_m`) begins with `part` of two letters or more."""
    return len(part) > 1 and any(piece.startswith(part) for piece in name.lower().split("_"))


def find_values(names: Sequence[str], word: str, graph: OpGraph | None) -> list[str]:
    """Values of `names` a word may mean: the value's name, its operator's kind, or a parameter it reads ("bias")."""
    if word in _EVERYTHING:
        return list(names)
    by_name = [name for name in names if word == name.lower()] or [name for name in names if word in name.lower()]
    if by_name or graph is None:
        return by_name
    sources = {value.name: value.source.lower() for value in graph.state}
    found = []
    for op in graph.ops:
        reads_it = any(sources.get(read, "").endswith(word) for read in op.reads)
        if word in op.kind.lower() or reads_it:
            found += [value.name for value in op.outputs if value.name in names]
    return found


def targets(lowered: Lowered, directive: Directive) -> Iterator[tuple[KernelSummary, Tunable, Choice]]:
    """(kernel, tunable, value) for each tunable of this candidate that a directive sets; the value may be illegal."""
    command = directive.command
    found = find_tunables(lowered, str(command["name"]), str(command.get("kernel", "")))
    if "value2" not in command:
        yield from ((kernel, tunable, command["value"]) for kernel, tunable in found)
        return
    named = f"{command['value']}x{command['value2']}"
    whole = [pair for pair in found if named in pair[1].values]
    if whole:  # a tile that is one tunable, "6x2"
        yield from ((*pair, named) for pair in whole)
        return
    for kernel in dict.fromkeys(pair[0].name for pair in found):  # the first two sides of each kernel's tile
        sides = [pair for pair in found if pair[0].name == kernel][:2]
        yield from ((*pair, value) for pair, value in zip(sides, (command["value"], command["value2"]), strict=False))


@dataclass(frozen=True)
class Obedience:
    """The directives to this candidate's island, resolved to moves from the candidate."""

    lowered: Lowered
    graph: OpGraph | None
    directives: tuple[Directive, ...]

    @cached_property
    def active(self) -> tuple[Directive, ...]:
        """Directives in force, oldest first. A later one about the same thing replaces the earlier one; `free` ends
        those about a name."""
        latest: dict[tuple[str, str, str], Directive] = {}
        for directive in sorted(self.directives, key=lambda item: item.id):
            command = directive.command
            name, verb = str(command.get("name", "")), str(command.get("verb", ""))
            if verb == "free":
                latest = {key: kept for key, kept in latest.items() if key[1] != name}
                continue
            subject = {"keep": "place", "split": "place", "apply": "rewrite", "drop": "rewrite"}.get(verb, verb)
            if verb == "avoid":
                subject += f" {command.get('value')}"
            latest[subject, name, str(command.get("kernel", ""))] = directive
        return tuple(sorted(latest.values(), key=lambda item: item.id))

    @cached_property
    def pins(self) -> dict[tuple[str, str], tuple[Choice, Directive]]:
        """(kernel, tunable) -> the value it must have, and who said so; only legal values."""
        found: dict[tuple[str, str], tuple[Choice, Directive]] = {}
        for directive in self.active:
            if directive.verb == "set":
                for kernel, tunable, value in targets(self.lowered, directive):
                    if value in tunable.values:
                        found[kernel.name, tunable.name] = (value, directive)
        return found

    @cached_property
    def required(self) -> tuple[tuple[Move, Directive], ...]:
        """Moves that would make this candidate follow the directives that it does not follow yet."""
        return tuple([*self._required_settings(), *self._required_structure()])

    def _required_settings(self) -> Iterator[tuple[Move, Directive]]:
        """Yields the settings that directives demand and the candidate lacks, each with its directive."""
        for kernel in self.lowered.kernels:
            for tunable in kernel.tunables:
                was = kernel.choices.get(tunable.name, tunable.default)
                value, directive = self.pins.get((kernel.name, tunable.name), (was, None))
                if directive is None and (avoided := self._avoids(tunable, was)):
                    value, directive = tunable.default, avoided
                    value = next((item for item in tunable.values if item != was), was) if value == was else value
                if directive is not None and value != was and isinstance(value, int | str):
                    yield setting(kernel, tunable, value), directive

    def _avoids(self, tunable: Tunable, value: object) -> Directive | None:
        """The directive that forbids this value of a tunable; None if there is none."""
        for directive in self.active:
            command = directive.command
            avoided = command.get("verb") == "avoid" and command.get("value") == value
            meant = find_tunables(self.lowered, str(command["name"])) if avoided else []
            if any(pair[1].name == tunable.name for pair in meant):
                return directive
        return None

    def _required_structure(self) -> Iterator[tuple[Move, Directive]]:
        """Yields the fusions, splits and rewrites that directives demand and the candidate lacks, each with its
        directive."""
        lowered, graph = self.lowered, self.graph
        for directive in self.active:
            verb, name = directive.verb, str(directive.command.get("name", ""))
            if verb == "keep":
                for value in find_values(lowered.materialised, name, graph):
                    yield Move("fuse", "fusion", value, reason="stays in registers"), directive
            elif verb == "split":
                for value in find_values(lowered.fused, name, graph)[:1]:
                    yield Move("split", "fusion", value, reason="written to memory once"), directive
            elif verb == "apply":
                for rewrite in [item for item in lowered.rewrites_open if name in item.lower()]:
                    yield Move("rewrite", "rewrite", rewrite, reason="exact rewrite"), directive
            elif verb == "drop":
                for rewrite in [item for item in lowered.rewrites_applied if name in item.lower()]:
                    yield Move("unwrite", "rewrite", rewrite, reason="as the reference writes it"), directive

    def forbids(self, move: Move) -> Directive | None:
        """The directive that a move would break, or None: a pin to another value, an avoided value, or the opposite of
        the move."""
        if move.kind == "set":
            pinned = self.pins.get((move.kernel, move.name))
            if pinned and pinned[0] != move.value:
                return pinned[1]
            tunables = [
                item for kernel in self.lowered.kernels if kernel.name == move.kernel for item in kernel.tunables
            ]
            tunable = next((item for item in tunables if item.name == move.name), None)
            return self._avoids(tunable, move.value) if tunable else None
        against = {"split": "keep", "fuse": "split", "rewrite": "drop", "unwrite": "apply"}[move.kind]
        for directive in self.active:
            command = directive.command
            if command.get("verb") == against and self._means(move, str(command.get("name", ""))):
                return directive
        return None

    def _means(self, move: Move, word: str) -> bool:
        """True if a user's word means this move: a value's name, or part of the move's name."""
        if move.kind in ("split", "fuse"):
            return bool(find_values([move.name], word, self.graph))
        return word in move.name.lower()

    def holds(self) -> tuple[Directive, ...]:
        """Directives that this candidate follows already, or will follow after the required moves."""
        needed = {directive.id for _, directive in self.required}
        pinned = {directive.id for _, directive in self.pins.values()}
        return tuple(item for item in self.active if item.id in needed | pinned or self._is_followed(item))

    def _is_followed(self, directive: Directive) -> bool:
        """True if a directive that sets no value is followed: it names something of this candidate and needs no
        move."""
        verb, name = directive.verb, str(directive.command.get("name", ""))
        lowered, graph = self.lowered, self.graph
        if verb == "avoid":
            return bool(find_tunables(lowered, name))
        if verb == "keep":
            return bool(find_values(lowered.fused, name, graph))
        if verb == "split":
            return bool(find_values(lowered.materialised, name, graph))
        rewrites = lowered.rewrites_applied if verb == "apply" else lowered.rewrites_open
        return verb in ("apply", "drop") and any(name in item.lower() for item in rewrites)
