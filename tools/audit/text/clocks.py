"""Clocks in native code that only functions read which forward never calls: those that tune a kernel beforehand.

In a call, a clock could tell a timed one from a checked one; in a constructor it measures what it builds.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from foundry.knowledge.reasons import Reason, ReasonKind
from foundry.tools.audit.text.source import CandidateSource, Function

CLOCKS = (
    "cudaEventElapsedTime",
    "cuEventElapsedTime",
    "steady_clock",
    "system_clock",
    "high_resolution_clock",
    "clock_gettime",
    "gettimeofday",
)
_CLOCK_SYMBOL = re.compile(r"c[ud]\w*EventElapsedTime|_ZNSt6chrono\w+|clock_gettime|gettimeofday")
_CLOCK = re.compile(rf"\b(?:{'|'.join(CLOCKS)})\b")
_DEFINITION = re.compile(r"\b(\w+)\s*\([^(){};]*\)\s*(?:const\b|noexcept\b|\s)*\{")
_NO_FUNCTIONS = frozenset({"if", "for", "while", "switch", "catch"})


@dataclass(frozen=True)
class _Native:
    """A function of the native text and where its body lies."""

    name: str
    start: int
    end: int


def is_clock(reason: Reason) -> bool:
    """Whether a clock is what speaks against a library."""
    return reason.kind in (ReasonKind.SYSTEM, ReasonKind.DEVICE) and bool(_CLOCK_SYMBOL.fullmatch(reason.subject))


def clocks_are_apart(source: CandidateSource, texts: list[str]) -> bool:
    """Whether every clock in the native `texts` (free of comments) is read by functions that forward cannot reach."""
    readers: set[str] = set()
    bodies: list[tuple[str, str]] = []
    for text in texts:
        functions = list(_functions(text))
        bodies += [(item.name, text[item.start : item.end]) for item in functions]
        for match in _CLOCK.finditer(text):
            around = [item for item in functions if item.start <= match.start() < item.end]
            if not around:
                return False  # an alias or a member: whoever uses it is not known
            readers.update(item.name for item in around)
    for _ in range(8):  # whoever mentions a reader is one
        pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, readers))})\b") if readers else None
        grown = readers | {name for name, body in bodies if pattern and pattern.search(body)}
        if grown == readers:
            break
        readers = grown
    return bool(readers) and not any(_is_within_reach(source, node) for node in _mentions(source, readers))


def _functions(text: str) -> Iterator[_Native]:
    for match in _DEFINITION.finditer(text):
        if match[1] in _NO_FUNCTIONS:
            continue
        depth, position = 1, match.end()
        while depth and position < len(text):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            position += 1
        yield _Native(match[1], match.end(), position)


def _mentions(source: CandidateSource, names: set[str]) -> Iterator[ast.AST]:
    """Where the Python text names one of the functions, in code or in quotes."""
    for node in ast.walk(source.tree):
        named = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 100:
            named = node.value
        if named in names:
            yield node


def _is_within_reach(source: CandidateSource, node: ast.AST) -> bool:
    """Whether forward may call what is named here. Types that are declared, and a list of what a module exports, call
    nothing."""
    reached = [function for function, _ in source.reached().values()]
    above: ast.AST | None = node
    while above is not None and not isinstance(above, Function):
        if isinstance(above, ast.Attribute) and above.attr in ("argtypes", "restype"):
            return False
        if isinstance(above, ast.keyword) and above.arg == "functions":
            return False
        above = source.above(above)
    return above is None or above in reached
