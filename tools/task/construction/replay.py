"""From a task's constructor to the calls that make the same tensors without its class, and the proof that they do.

A dispatcher's record misses what a constructor draws by numpy or `random`, or reads from a file; so the replay is built
once under another seed and compared with the model. Runs in a worker: it executes the user's code.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import nn

from foundry.knowledge.library.file.arguments import describe
from foundry.knowledge.library.file.skeleton import skeleton_text
from foundry.knowledge.opgraph import Construction
from foundry.tools.task.construction.recorder import CannotReplay, Recorder
from foundry.tools.task.construction.tree import Facts, facts_of, parts_of, tensors_of

RECORDED_SEED, OTHER_SEED = 0, 1
Build = Callable[[int], object]  # constructs the task's model under a seed, by its module's name Model
Under = Callable[[int, Callable[[], nn.Module]], nn.Module]  # the same for any maker, with the same seed and device


@dataclass
class _Watched:
    """Stands for the task's class while its module builds a model, and looks at the model before others touch it."""

    kind: Callable[..., Any]
    look: Callable[[Any, tuple[Any, ...], dict[str, Any], Recorder | None], None]
    records: bool
    problem: str = ""
    count: int = field(default=0)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        self.problem = ""
        recorder = Recorder() if self.records else None
        if recorder is None:
            model = self.kind(*args, **kwargs)
        else:
            with recorder:
                model = self.kind(*args, **kwargs)
        try:
            self.look(model, args, kwargs, recorder)
        except CannotReplay as error:
            self.problem = str(error)
        return model


def construction_of(module: ModuleType, build: Build, under: Under, attributes: Collection[str]) -> Construction:
    """How the task's model comes to its tensors. `module` is the task's, whose Model `build` constructs; `attributes`
    are the paths of plain tensors that are wanted besides parameters and buffers. Raises CannotReplay."""
    found: list[tuple[Construction, set[str]]] = []

    def record(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], recorder: Recorder | None) -> None:
        assert recorder is not None
        found.append(_read(model, args, kwargs, recorder, attributes))

    _watch(module, build, RECORDED_SEED, record, records=True)
    construction, unset = found[-1]
    _check(construction, module, build, under, attributes, unset)
    return construction


def _watch(module: ModuleType, build: Build, seed: int, look: Callable[..., None], *, records: bool) -> None:
    watched = _Watched(module.Model, look, records)
    stand_in = functools.wraps(module.Model, updated=())(lambda *args, **kwargs: watched(*args, **kwargs))
    with mock.patch.object(module, "Model", stand_in):
        build(seed)
    if watched.problem:
        raise CannotReplay(watched.problem)


def _read(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], recorder: Recorder, attributes: Collection[str]
) -> tuple[Construction, set[str]]:
    """The construction, and the paths of tensors to which nothing was written."""
    parts = parts_of(model)
    places = tensors_of(model, parts, attributes)
    there = [place.tensor for place in places if place.tensor is not None]
    held = [
        place.held if place.tensor is None else replace(place.held, value=recorder.name_of(place.tensor))
        for place in places
    ]
    takes, given = _bound(type(model).__init__, model, args, kwargs)
    forward, _ = _printable(type(model).forward)
    told = ", ".join(f"{name}={describe(item)}" for name, item in given.items())
    construction = Construction(told, takes, forward, recorder.calls_behind(there), parts, held)
    unset = {place.held.path for place in places if place.tensor is not None and not recorder.is_filled(place.tensor)}
    return construction, unset


def _bound(
    function: Callable[..., Any], model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """(the constructor's parameters as source, what it was given by name, printed defaults included)."""
    text, signature = _printable(function)
    bound = signature.bind(model, *args, **kwargs)
    bound.apply_defaults()
    own = next(iter(signature.parameters))
    return text, {name: value for name, value in bound.arguments.items() if name != own}


def _printable(function: Callable[..., Any]) -> tuple[str, inspect.Signature]:
    """(the parameters after the first as source, the whole signature with the defaults that stand there). A default
    that has no plain text is `...`."""
    signature = inspect.signature(function)
    parameters = [
        item.replace(annotation=inspect.Parameter.empty, default=_default(item.default))
        for item in signature.parameters.values()
    ]
    signature = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    if parameters and parameters[0].kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise CannotReplay("its methods have no parameter for the model itself")
    rest = signature.replace(parameters=parameters[1:])
    return str(rest).removeprefix("(").removesuffix(")").replace("Ellipsis", "..."), signature


def _default(value: Any) -> Any:
    is_plain = (
        value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    )
    return value if is_plain or value is inspect.Parameter.empty else ...


def _check(
    construction: Construction,
    module: ModuleType,
    build: Build,
    under: Under,
    attributes: Collection[str],
    unset: Collection[str],
) -> None:
    """Raises CannotReplay where the file's model differs from the task's under another seed."""
    found: list[Facts] = []
    arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def is_compared(path: str) -> bool:
        return path not in unset

    def look(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _: Recorder | None) -> None:
        found.append(facts_of(model, attributes, is_compared))
        arguments.append((args, kwargs))

    _watch(module, build, OTHER_SEED, look, records=False)
    args, kwargs = arguments[-1]
    space: dict[str, Any] = {"torch": torch}
    exec(compile("import hashlib\n" + skeleton_text([construction]), "<replay>", "exec", dont_inherit=True), space)
    try:
        own = facts_of(under(OTHER_SEED, lambda: space["Model"](*args, **kwargs)), attributes, is_compared)
    except (RuntimeError, TypeError, ValueError) as error:
        first = str(error).splitlines()[0][:200] if str(error) else ""
        raise CannotReplay(f"its constructor's calls cannot be made again: {first}") from error
    for path, facts in found[-1].items():
        if own.get(path) != facts:
            raise CannotReplay(
                f"the values of {path} are not made by torch's calls alone (numpy, random, a file or another seed)"
            )
