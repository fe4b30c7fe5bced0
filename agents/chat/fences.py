"""Reads the fenced blocks of an answer: kernels, device code, and replacements of lines.

A replacement is written as

    <<<<<<< SEARCH
    the lines as they are
    =======
    the lines as they should be
    >>>>>>> REPLACE

and may stand in a fence or outside of one.
"""

from __future__ import annotations

import re

# possessive, because a long line without an end must not cost quadratic time
FENCE = re.compile(r"```[ \t]*+([\w+-]*+)[^\n]*+\n(.*?)(?:\n```|\Z)", re.DOTALL)
_NATIVE = frozenset({"c", "cc", "cpp", "c++", "cu", "cuda", "h", "hpp", ""})
_BEGIN, _MIDDLE, _END = "<<<<<<<", "=======", ">>>>>>>"


def fenced_kernel(text: str) -> str:
    """The longest fenced block that defines ModelNew, "" when there is none."""
    blocks = [found[2].strip("\n") + "\n" for found in FENCE.finditer(text) if "class ModelNew" in found[2]]
    return max(blocks, key=len, default="")


def fenced_code(text: str) -> str:
    """The C++ or CUDA code of all fences that hold some, in order; "" when there is none."""
    blocks = [
        found[2].strip("\n") + "\n"
        for found in FENCE.finditer(text)
        if found[1].lower() in _NATIVE and _BEGIN not in found[2] and _looks_native(found[2])
    ]
    return "\n".join(blocks)


def _looks_native(text: str) -> bool:
    """True if the text is device code: it has braces and semicolons, no `class ModelNew`, and does not begin like
    JSON."""
    return "class ModelNew" not in text and not text.lstrip().startswith("{") and "{" in text and ";" in text


def replacements(text: str) -> list[tuple[str, str]]:
    """The replacements of the text as (old lines, new lines), in order; those without all three markers are left
    out."""
    found: list[tuple[str, str]] = []
    old: list[str] | None = None
    new: list[str] | None = None
    for line in text.splitlines():
        if line.startswith(_BEGIN):
            old, new = [], None
        elif line.startswith(_MIDDLE) and old is not None and new is None:
            new = []
        elif line.startswith(_END) and old is not None and new is not None:
            found.append(("\n".join(old), "\n".join(new)))
            old = new = None
        elif new is not None:
            new.append(line)
        elif old is not None:
            old.append(line)
    return found
