"""JSON for the frozen records that cross a process or file border, validated by pydantic when they are read."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from foundry.knowledge.errors import UsageError

T = TypeVar("T")


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """The pydantic adapter of a type, made once."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)  # building one takes milliseconds
    return _ADAPTERS[kind]


def prepare(kind: Any) -> None:
    """Builds a record's adapter now, so that processes forked from this one need not."""
    _adapter(kind)


def encode(record: object) -> str:
    """One line of JSON (Python's dialect: Infinity and NaN are kept, graphs hold them as arguments)."""
    return json.dumps(_adapter(type(record)).dump_python(record))


def decode(kind: type[T], text: str | bytes) -> T:
    """The record of type `kind` in `text`; raises UsageError with the first field that is wrong."""
    try:
        record: T = _adapter(kind).validate_python(json.loads(text))
        return record
    except (ValueError, RecursionError) as error:
        if not isinstance(error, ValidationError):
            raise UsageError(f"not a {kind.__name__}: {str(error)[:200]}") from error
        first = error.errors()[0]
        where = ".".join(str(part)[:60] for part in first["loc"]) or "the document"
        raise UsageError(f"not a valid {kind.__name__}: {where}: {first['msg']}") from error


def pack(kind: Any, value: object) -> Any:
    """A value of type `kind` in plain JSON types; `unpack` gives it back."""
    return _adapter(kind).dump_python(value)


def unpack(kind: Any, plain: Any) -> Any:
    """The value of type `kind` behind its plain form; raises UsageError."""
    try:
        return _adapter(kind).validate_python(plain)
    except ValidationError as error:
        raise UsageError(f"not a valid {kind}: {error.errors()[0]['msg']}") from error


def to_plain(record: object) -> Any:
    """The record as JSON-able dicts and lists."""
    return _adapter(type(record)).dump_python(record, mode="json")
