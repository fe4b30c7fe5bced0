"""The numbers and words of one kernel that a search may choose: each declared where the printer decides by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.ir.printed import Tunable

Aspect = Literal["tile", "vector", "memory", "parallel", "algorithm", "precision"]


class Tuning:
    """The tunables of one kernel and their values. A choice that is not legal for the kernel gives way to the default.

    A tunable with a single legal value is not declared, unless `declares_fixed`.
    """

    def __init__(self, choices: Mapping[str, Choice], *, declares_fixed: bool = False) -> None:
        """`choices` are the wanted values by name; none is declared yet."""
        self._choices = choices
        self._declares_fixed = declares_fixed
        self.tunables: list[Tunable] = []
        self.values: dict[str, Choice] = {}

    def choose(self, name: str, values: Sequence[Choice], default: Choice, aspect: Aspect, meaning: str) -> Choice:
        """The value of a tunable, which is declared, so that a search may set it."""
        legal = tuple(dict.fromkeys(values))
        wanted = self._choices.get(name, default)
        value = wanted if wanted in legal else default
        if len(legal) > 1 or self._declares_fixed:
            self.tunables.append(Tunable(name, legal, default, aspect, meaning))
            self.values[name] = value
        return value

    def number(self, name: str, values: Sequence[int], default: int, aspect: Aspect, meaning: str) -> int:
        """Declares a tunable number and returns the chosen value."""
        return int(self.choose(name, values, default, aspect, meaning))

    def text(self, name: str, values: Sequence[str], default: str, aspect: Aspect, meaning: str) -> str:
        """Declares a tunable word and returns the chosen one."""
        return str(self.choose(name, values, default, aspect, meaning))

    def withdraw(self, name: str) -> None:
        """Takes back a declaration that a later decision has made meaningless."""
        self.tunables = [item for item in self.tunables if item.name != name]
        self.values.pop(name, None)
