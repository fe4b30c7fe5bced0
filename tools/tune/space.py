"""The configurations of one kernel: its tunables as the printer declares them, each configuration in one spelling."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.ir.kernels import PrintedKernel, Tunable
from foundry.knowledge.errors import CannotLower
from foundry.tools.tune.alone import Subject

Setting = tuple[tuple[str, Choice], ...]  # every tunable with its value, by name
HELD = ("precision",)  # aspects that decide which results are accepted: the structure has settled them
DRAWS = 64  # attempts to draw a new configuration


def setting_of(choices: Mapping[str, Choice]) -> Setting:
    """The one spelling of a configuration: (name, value) sorted by name."""
    return tuple(sorted(choices.items()))


class SettingSpace(Protocol):
    """A search policy's view of a kernel."""

    @property
    def present(self) -> Setting:
        """The configuration from which the search starts."""
        ...

    def values(self, setting: Setting) -> Mapping[str, Sequence[Choice]]:
        """The tunables that may change here, each with all its values."""
        ...

    def legal(self, wanted: Mapping[str, Choice]) -> Setting | None:
        """The legal configuration nearest to these choices, or None."""
        ...


class KernelSpace:
    """The configurations that a kernel's printer accepts."""

    def __init__(self, subject: Subject) -> None:
        """Prints the kernel once with its present choices, which gives its tunables."""
        self._subject = subject
        self._printed: dict[Setting, PrintedKernel] = {}
        self._leads_to: dict[Setting, Setting | None] = {}
        first = subject.print(subject.present)
        self.present = setting_of(first.choices)
        self._printed[self.present] = first
        self._held = {item.name: first.choices[item.name] for item in first.tunables if item.aspect in HELD}

    def printed(self, setting: Setting) -> PrintedKernel:
        """The kernel's text in a configuration."""
        return self._printed[setting]

    def values(self, setting: Setting) -> Mapping[str, Sequence[Choice]]:
        """Legal values of each free tunable of the configuration, by name."""
        return {item.name: item.values for item in self._free(setting)}

    def legal(self, wanted: Mapping[str, Choice]) -> Setting | None:
        """The configuration that the printer makes of these choices; None if it refuses them. Cached."""
        key = setting_of(wanted)
        if key not in self._leads_to:
            self._leads_to[key] = self._print(wanted)
        return self._leads_to[key]

    def _print(self, wanted: Mapping[str, Choice]) -> Setting | None:
        """Prints the kernel with the wanted choices; returns the configuration that came out, None if it cannot be
        printed."""
        try:
            text = self._subject.print({**wanted, **self._held})
        except CannotLower:
            return None
        if any(text.choices.get(name) != value for name, value in self._held.items()):
            return None
        setting = setting_of(text.choices)
        self._printed.setdefault(setting, text)
        return setting

    def _free(self, setting: Setting) -> Iterator[Tunable]:
        """Tunables that the sweep may change and that have more than one value."""
        tunables = self._printed[setting].tunables
        return (item for item in tunables if item.aspect not in HELD and len(item.values) > 1)


def neighbours(space: SettingSpace, setting: Setting) -> list[Setting]:
    """Every configuration that differs by one value of one tunable."""
    choices = dict(setting)
    found: dict[Setting, None] = {}
    for name, values in space.values(setting).items():
        for value in values:
            if value != choices.get(name) and (other := space.legal({**choices, name: value})) is not None:
                found[other] = None
    found.pop(setting, None)
    return list(found)


def draw(
    space: SettingSpace, stream: random.Random, known: Collection[Setting], bases: Sequence[Setting]
) -> Setting | None:
    """A random new configuration; None if none seems left. `bases` are configurations whose values it may take."""
    for _ in range(DRAWS):
        base = stream.choice(bases)
        wanted = {name: stream.choice(list(values)) for name, values in space.values(base).items()}
        found = space.legal(wanted)
        if found is None:
            continue
        fresh = {name: values for name, values in space.values(found).items() if name not in wanted}
        if fresh:  # tunables of another algorithm
            wanted |= {name: stream.choice(list(values)) for name, values in fresh.items()}
            found = space.legal(wanted) or found
        if found not in known:
            return found
    return None


def everything(space: SettingSpace, most: int) -> list[Setting]:
    """All configurations reachable by single steps, `most` at most."""
    found = {space.present: None}
    queue = [space.present]
    while queue and len(found) < most:
        for other in neighbours(space, queue.pop(0)):
            if other not in found and len(found) < most:
                found[other] = None
                queue.append(other)
    return list(found)
