"""Describes a constructor's arguments in one text. The kernel's file carries the source of `describe` word for word."""

from __future__ import annotations

import hashlib
import re
from typing import Any


def describe(value: Any, seen: Any = None) -> str:
    """A text that is the same for equal arguments, in every process. Tensors are told by their bytes, functions and
    classes by their names, other objects by what they hold, each object once."""
    kind, seen = type(value), set() if seen is None else seen
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [describe(item, seen) for item in value]
        return f"{kind.__name__}({', '.join(sorted(items) if isinstance(value, (set, frozenset)) else items)})"
    if isinstance(value, dict):
        items = [f"{describe(key, seen)}: {describe(item, seen)}" for key, item in value.items()]
        return f"{kind.__name__}({', '.join(items)})"
    if hasattr(value, "untyped_storage"):
        plain = value.detach().cpu().contiguous()
        digest = hashlib.sha256(bytes(plain.clone().untyped_storage())).hexdigest()[:16]
        return f"tensor({tuple(plain.shape)}, {plain.dtype}, {digest})"
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    held = getattr(value, "__dict__", None)
    if held and kind.__module__ != "builtins":
        is_known = id(value) in seen
        seen.add(id(value))
        return f"{kind.__qualname__}({'...' if is_known else describe(dict(sorted(held.items())), seen)})"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
