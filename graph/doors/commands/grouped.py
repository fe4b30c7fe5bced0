"""A command with many options takes a few groups of them, each a dataclass with one field an option."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer is to read it: where a parameter is a dataclass stand its fields, each with a default."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint) and isinstance(hint, type)}
    options: list[Parameter] = []
    for item in signature(command).parameters.values():
        hint = hints[item.name]
        options += _options_of(hint) if item.name in groups else [_option(item.name, hint, item.default)]

    @wraps(command)
    def call_with_groups(**given: Any) -> None:
        """Calls the command with the flat options gathered into their dataclasses."""
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    call_with_groups.__dict__["__signature__"] = Signature(options)
    call_with_groups.__annotations__ = {item.name: item.annotation for item in options}
    return call_with_groups


def _options_of(group: Any) -> Iterator[Parameter]:
    """Yields an option for each field of a dataclass."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield _option(field.name, hints[field.name], field.default)


def _option(name: str, hint: Any, default: Any) -> Parameter:
    """A keyword option as Typer reads it."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
