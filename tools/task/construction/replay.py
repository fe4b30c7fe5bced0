"""Turns a task's constructor into calls that make the same tensors without its class, and proves that they do.

A dispatcher's record misses values drawn by numpy or `random`, or read from a file. So the replay is built once
under another seed and compared with the model. Runs in a worker: it executes the user's code.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeVar
from unittest import mock

import torch
from torch import nn

from foundry.knowledge.compiler.file.arguments import describe
from foundry.knowledge.compiler.file.skeleton import skeleton_text
from foundry.knowledge.opgraph import Construction
from foundry.tools.task.construction.recorder import CannotReplay, Recorder
from foundry.tools.task.construction.tree import Facts, facts_of, parts_of, tensors_of

Found = TypeVar("Found")

RECORDED_SEED = 0
OTHER_SEED = 1
Build = Callable[[int], object]  # constructs the task's model under a seed, by its module's name Model
Under = Callable[[int, Callable[[], nn.Module]], nn.Module]  # the same for any maker, with the same seed and device


Given = tuple[tuple[Any, ...], dict[str, Any]]  # (arguments by position, arguments by name)


@dataclass(frozen=True)
class _Seen:
    """A model as its constructor left it, and a copy of the arguments from before, because it may change them."""

    model: nn.Module
    given: Given
    told: str
    left: str
    recorder: Recorder | None


def construction_of(module: ModuleType, build: Build, under: Under, attributes: Collection[str]) -> Construction:
    """The calls that make the tensors of the task's model. Raises CannotReplay.

    `module` is the task's, whose Model `build` constructs; `attributes` are the paths of plain tensors that are
    wanted besides parameters and buffers.
    """
    kind = module.Model
    takes, signature = _printable(kind)

    def record(seen: _Seen) -> tuple[Construction, set[str]]:
        """(construction to replay, paths of tensors to which nothing was written), from a recorded constructor."""
        return _read(seen, takes, attributes)

    construction, unset = _watch(module, build, RECORDED_SEED, signature, record, recorder=Recorder)
    _check(construction, lambda look: _watch(module, build, OTHER_SEED, signature, look), under, attributes, unset)
    return construction


def _watch(
    module: ModuleType,
    build: Build,
    seed: int,
    signature: inspect.Signature,
    look: Callable[[_Seen], Found],
    *,
    recorder: Callable[[], Recorder] | None = None,
) -> Found:
    """Builds the module's model and returns what `look` finds in it, before other code can change it."""
    kind = module.Model
    found = list[Found | CannotReplay]()

    def construct(*args: Any, **kwargs: Any) -> Any:
        """Constructs the watched class as usual, recording if asked; appends what `look` makes of it, or why it cannot
        be replayed."""
        try:
            told = _arguments_text(signature, args, kwargs)
            given = copy.deepcopy((args, kwargs))
        except Exception as error:  # raised by an argument's own code
            found.append(CannotReplay(f"its constructor's arguments cannot be told or copied: {str(error)[:200]}"))
            return kind(*args, **kwargs)
        records = recorder() if recorder is not None else None
        with records or contextlib.nullcontext():
            model = kind(*args, **kwargs)
        try:
            found.append(look(_Seen(model, given, told, _arguments_text(signature, args, kwargs), records)))
        except CannotReplay as error:
            found.append(error)
        return model

    with mock.patch.object(module, "Model", functools.wraps(kind, updated=())(construct)):
        build(seed)
    if isinstance(found[-1], CannotReplay):
        raise found[-1]
    return found[-1]


def _read(seen: _Seen, takes: str, attributes: Collection[str]) -> tuple[Construction, set[str]]:
    """(the construction to replay, paths of tensors to which nothing was written), from a constructed and recorded
    model."""
    model, recorder = seen.model, seen.recorder
    assert recorder is not None
    parts = parts_of(model)
    places = tensors_of(model, parts, attributes)
    there = [place.tensor for place in places if place.tensor is not None]
    held = [
        place.held if place.tensor is None else replace(place.held, value=recorder.name_of(place.tensor))
        for place in places
    ]
    forward, _ = _printable(functools.partial(type(model).forward, model))
    construction = Construction(
        seen.told,
        left=seen.left,
        takes=takes,
        forward=forward,
        calls=recorder.calls_behind(there),
        parts=parts,
        held=held,
    )
    unset = {place.held.path for place in places if place.tensor is not None and not recorder.is_filled(place.tensor)}
    return construction, unset


def _arguments_text(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The constructor's arguments as source text, by name, with the defaults that a file can hold."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return ", ".join(f"{name}={describe(item)}" for name, item in bound.arguments.items())


def _printable(function: Callable[..., Any]) -> tuple[str, inspect.Signature]:
    """(parameters as source, the same as a signature). A default that has no plain text becomes `...`."""
    signature = inspect.signature(function)
    parameters = [
        item.replace(annotation=inspect.Parameter.empty, default=_default(item.default))
        for item in signature.parameters.values()
    ]
    signature = inspect.Signature(parameters)
    return str(signature).removeprefix("(").removesuffix(")").replace("Ellipsis", "..."), signature


def _default(value: Any) -> Any:
    """A default that a file can hold, else `...`."""
    is_plain = (
        value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    )
    return value if is_plain or value is inspect.Parameter.empty else ...


def _check(
    construction: Construction,
    watch: Callable[[Callable[[_Seen], tuple[Facts, Given]]], tuple[Facts, Given]],
    under: Under,
    attributes: Collection[str],
    unset: Collection[str],
) -> None:
    """Raises CannotReplay if the file's model differs from the task's under another seed."""

    def facts(model: nn.Module) -> Facts:
        """Facts about a model's tensors that are compared; those to which nothing was written are left out."""
        return facts_of(model, attributes, lambda path: path not in unset)

    expected, (args, kwargs) = watch(lambda seen: (facts(seen.model), seen.given))
    space: dict[str, Any] = {"torch": torch}
    exec(compile("import hashlib\n" + skeleton_text([construction]), "<replay>", "exec", dont_inherit=True), space)
    try:
        own = facts(under(OTHER_SEED, lambda: space["Model"](*args, **kwargs)))
    except (RuntimeError, TypeError, ValueError) as error:
        first = str(error).splitlines()[0][:200] if str(error) else ""
        raise CannotReplay(f"its constructor's calls cannot be made again: {first}") from error
    for path, fact in expected.items():
        if own.get(path) != fact:
            raise CannotReplay(
                f"the values of {path} are not made by torch's calls alone (numpy, random, a file or another seed)"
            )
