"""Finds clocks in native code that forward can never reach: they tune a kernel beforehand, which is allowed.

In a call, a clock could tell a timed call from a checked one; in a constructor it measures what it builds.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from foundry.knowledge.reasons import Reason, ReasonKind
from foundry.tools.audit.text.native import native_texts, strip_comments
from foundry.tools.audit.text.source import CandidateSource, methods_of

_CLOCK_SYMBOL = re.compile(r"c[ud]\w*EventElapsedTime|_ZNSt6chrono\w+|clock_gettime|gettimeofday")
_ASKED = re.compile(r"_ZNSt6chrono\w+|clock_gettime|clock")
_CLOCK = re.compile(
    r"\b(?:cu(?:da)?EventElapsedTime|(?:steady|system|high_resolution)_clock|clock_gettime|gettimeofday)\b"
)
_DEFINITION = re.compile(r"\b(\w+)\s*\([^(){};]*\)\s*(?:const\b|noexcept\b|\s)*\{")
_NO_FUNCTIONS = frozenset({"if", "for", "while", "switch", "catch"})


@dataclass(frozen=True)
class _Native:
    """A function of the native text and where its body lies."""

    name: str
    start: int
    end: int


def is_clock(reason: Reason) -> bool:
    """True if the reason against a library is a clock."""
    return reason.kind in (ReasonKind.SYSTEM, ReasonKind.DEVICE) and bool(_CLOCK_SYMBOL.fullmatch(reason.subject))


def is_asked_about(reason: Reason) -> bool:
    """True for a clock of the C library, whose speed the audit's runs change."""
    return reason.kind == ReasonKind.SYSTEM and bool(_ASKED.fullmatch(reason.subject))


def clocks_are_apart(source: CandidateSource) -> bool:
    """True if every clock in the native text is read only by functions that forward cannot reach."""
    texts = [strip_comments(text) for _, text in native_texts(source)]
    readers: set[str] = set()
    bodies: list[tuple[str, str]] = []
    for text in texts:
        functions = list(_functions(text))
        bodies += [(item.name, text[item.start : item.end]) for item in functions]
        for match in _CLOCK.finditer(text):
            around = [item for item in functions if item.start <= match.start() < item.end]
            if not around:
                return False  # an alias or a member: its users are unknown
            readers.update(item.name for item in around)
    for _ in range(8):  # functions that mention a reader are readers too
        pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, readers))})\b") if readers else None
        grown = readers | {name for name, body in bodies if pattern and pattern.search(body)}
        if grown == readers:
            break
        readers = grown
    return bool(readers) and not _reaches(source, readers)


def _functions(text: str) -> Iterator[_Native]:
    """Yields the functions defined in a native text, with begin and end of their bodies, by counting braces."""
    for match in _DEFINITION.finditer(text):
        if match[1] in _NO_FUNCTIONS:
            continue
        depth = 1
        position = match.end()
        while depth and position < len(text):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            position += 1
        yield _Native(match[1], match.end(), position)


def _reaches(source: CandidateSource, readers: set[str]) -> bool:
    """True if forward may call one of the native functions: by name, through functions and methods of the file.

    Code that runs at load time, and constructors, may read a clock; a name that is kept for later may not. Declared
    types and a module's list of exports call nothing.
    """
    pending: list[ast.AST] = [
        method for owner in source.classes.values() for name, method in methods_of(owner).items() if name != "__init__"
    ]
    called = [node for node in source.own if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call)]
    pending += called  # `OTHER = LIBRARY.measure` is a function under another name
    seen: set[int] = set()
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        for name in _named(part):
            if name in readers:
                return True
            if name in source.functions:
                pending.append(source.functions[name])
    return False


def _named(part: ast.AST) -> Iterator[str]:
    """Names, attributes and short texts in a part of the file, without declared types and lists of exports."""
    target = part.targets[0] if isinstance(part, ast.Assign) else None
    if isinstance(target, ast.Attribute) and target.attr in ("argtypes", "restype"):
        return
    for node in ast.iter_child_nodes(part):
        if isinstance(node, ast.keyword) and node.arg == "functions":
            continue
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 100:
            yield node.value
        yield from _named(node)
