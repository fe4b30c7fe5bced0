"""The texts that ship inside the compiler: kernel templates, run-time headers, module templates."""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Iterator, Mapping
from importlib.resources.abc import Traversable

from foundry.knowledge.compiler.ir.exprs import SPECIAL_OPS

ENDINGS = (".cpp", ".cu", ".h", ".cuh", ".py.txt")


@functools.cache
def library_texts() -> Mapping[str, str]:
    """Every text file of the compiler's package, by its path below the package's folder."""
    return dict(_texts(importlib.resources.files("foundry.knowledge.compiler"), ""))


def read_library_text(name: str) -> str:
    """One text by its path below the compiler's folder; raises KeyError if there is none."""
    return library_texts()[name]


def special_functions(source: str) -> str:
    """The special functions of both targets, if a source calls one of them; else ""."""
    return read_library_text("file/special.h") if _SPECIAL.search(source) else ""


_SPECIAL = re.compile(rf"\bmath::(?:{'|'.join(SPECIAL_OPS)})\(")


def _texts(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    """Yields (path, text) of all source files below a folder."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _texts(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(ENDINGS):
            yield prefix + entry.name, entry.read_text(encoding="utf-8")


def fill(template: str, holes: Mapping[str, object]) -> str:
    """Replaces each line `@NAME@` (or the word inside a line) once; text that is filled in is not searched again.
    Raises ValueError for an unpaired @."""
    parts = template.split("@")
    if len(parts) % 2 == 0:
        raise ValueError("a template has an unpaired @")
    return "".join(str(holes[part]) if index % 2 else part for index, part in enumerate(parts))
