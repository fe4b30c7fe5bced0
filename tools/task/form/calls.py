"""Reads the values of a task's input makers: arguments by position and by name, cases, modules beside it.

Free of torch; runs in workers.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

GROUP = "input group"  # key among overrides that numbers a case of get_input_groups() or of a generator
MOST_GROUPS = 16  # cases of a task that are used
MOST_DRAWN = 256  # cases that are drawn, of which MOST_GROUPS are chosen


class Keywords(dict[str, Any]):
    """Arguments by name; if there are any, they are the last item in a list of arguments."""


def parted(arguments: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(arguments by position, arguments by name)."""
    if arguments and type(arguments[-1]) is Keywords:
        return tuple(arguments[:-1]), dict(arguments[-1])
    return tuple(arguments), {}


def call(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Calls a function; Keywords at the end of the arguments are passed by name."""
    values, names = parted(arguments)
    return function(*values, **names)


def as_arguments(given: Any, function: Callable[..., Any] | None) -> list[Any]:
    """The arguments that an input maker's value stands for, Keywords at their end.

    `given` is a list or tuple, a dict of names, `[[arguments], {names}]`, or one value alone. The signature of
    `function` (None: unknown) decides about a dict or a pair; a dict that it does not accept as names is one
    argument.
    """
    if isinstance(given, dict):
        bound = _bound(function, (), given)
        return [given] if bound is None else bound
    if not isinstance(given, list | tuple):
        return [given]
    if len(given) == 2 and isinstance(given[0], list | tuple) and isinstance(given[1], dict):
        bound = _bound(function, given[0], given[1])
        if bound is not None:
            return bound
    return list(given)


def _bound(function: Callable[..., Any] | None, values: Sequence[Any], names: Mapping[Any, Any]) -> list[Any] | None:
    """The arguments in the function's order, by position as far as possible; None if the function does not accept
    them."""
    if not all(isinstance(name, str) for name in names):
        return None
    try:
        if function is None:
            return [*values, *([Keywords(names)] if names else [])]
        found = inspect.signature(function).bind(*values, **names)
    except (TypeError, ValueError):  # not accepted, or the function has no signature
        return None
    return [*found.args, *([Keywords(found.kwargs)] if found.kwargs else [])]


def chosen_groups(described: Sequence[tuple[Any, int]]) -> list[int]:
    """Numbers of the cases to use, given (description, size) of each.

    The first case, and of those with a new description (shapes, dtypes, numbers) so many that MOST_GROUPS are spread
    over the sizes.
    """
    distinct: dict[str, int] = {}
    for number, (what, _) in enumerate(described):
        distinct.setdefault(repr(what), number)
    numbers = list(distinct.values())
    if len(numbers) <= MOST_GROUPS:
        return numbers
    first, *rest = numbers
    rest.sort(key=lambda number: described[number][1])
    steps = MOST_GROUPS - 1
    kept = {rest[round(step * (len(rest) - 1) / (steps - 1))] for step in range(steps)}
    return [first, *sorted(kept)]


class ModulesBeside:
    """A finder for `sys.meta_path`: finds the modules beside a task, by the files that belong to it."""

    def __init__(self, folder: Path, files: Iterable[str]) -> None:
        """`files` are the task's own files; only their modules are found in `folder`."""
        self._folder = folder
        tops = {Path(name).parts[0] for name in files if name.endswith(".py")}
        self._names = {name.removesuffix(".py") for name in tops}

    def install(self) -> None:
        """Puts this finder first, like a script's own folder, and forgets loaded modules of these names from other
        folders."""
        for name in [name for name in sys.modules if name.partition(".")[0] in self._names]:
            if not self._is_own(name):
                del sys.modules[name]
        for other in [finder for finder in sys.meta_path if isinstance(finder, ModulesBeside)]:
            sys.meta_path.remove(other)
        if self._names:
            sys.meta_path.insert(0, self)

    def _is_own(self, name: str) -> bool:
        """True if a loaded module lies in the task's folder."""
        places = [getattr(sys.modules[name], "__file__", None), *getattr(sys.modules[name], "__path__", [])]
        return any(place and Path(place).is_relative_to(self._folder) for place in places)

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The module's spec, as importlib asks for it; modules inside a package are found by the package's own path."""
        if path is not None or name not in self._names:
            return None
        for place in (self._folder / name / "__init__.py", self._folder / f"{name}.py"):
            if place.is_file():
                inner = [str(place.parent)] if place.name == "__init__.py" else None
                return importlib.util.spec_from_file_location(name, place, submodule_search_locations=inner)
        if (self._folder / name).is_dir():
            found = ModuleSpec(name, None, is_package=True)
            found.submodule_search_locations = [str(self._folder / name)]
            return found
        return None
