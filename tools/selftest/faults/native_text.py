"""Finds the native source inside a candidate file, masks its comments and strings, and puts changed source back.

Free of torch.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from foundry.knowledge import syntax
from foundry.knowledge.errors import UsageError

_LOOKS_NATIVE = re.compile(r"#include|__global__|\bextern\s+\"C\"|\bfor\s*\(")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_FIRST_KERNEL = re.compile(r"^(?:// k_|namespace shape|namespace \{)", re.MULTILINE)


@dataclass(frozen=True)
class NativeText:
    """One string constant of a candidate file that holds native source.

    `masked` has blanks for comments and strings, and the same length. Kernels start at `begin`; a runtime header of
    Foundry before them is skipped.
    """

    file: str
    source: str
    masked: str
    begin: int
    span: tuple[int, int]  # begin and end of the literal in the file, in characters

    def with_source(self, source: str) -> str:
        """The file with this native source replaced."""
        first, last = self.span
        return self.file[:first] + _literal(source) + self.file[last:]

    def line(self, position: int) -> int:
        """Line number of a position in the native source, from 1."""
        return self.source.count("\n", 0, position) + 1


def native_texts(text: str) -> list[NativeText]:
    """Every string constant of a Python file that is C++ or CUDA; raises UsageError for a file that is not Python."""
    try:
        tree = syntax.parse(text)
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"the candidate is not a Python file: {error}") from error
    starts = _line_starts(text)
    found: list[NativeText] = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value):
            continue
        if not _LOOKS_NATIVE.search(node.value) or node.end_lineno is None or node.end_col_offset is None:
            continue
        span = (
            _place(text, starts, node.lineno, node.col_offset),
            _place(text, starts, node.end_lineno, node.end_col_offset),
        )
        masked = _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), node.value)
        kernel = _FIRST_KERNEL.search(node.value) if "FOUNDRY = {" in text else None
        found.append(NativeText(text, node.value, masked, kernel.start() if kernel else 0, span))
    return found


def _line_starts(text: str) -> list[int]:
    """Character position at which each line starts."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _place(text: str, starts: list[int], line: int, column: int) -> int:
    """Position in characters of a line and a column that ast counts in bytes of UTF-8."""
    start = starts[line - 1]
    return start + len(text[start : starts[line]].encode()[:column].decode())


def _literal(source: str) -> str:
    """A Python literal for a native source, raw and triple-quoted if possible."""
    if '"""' in source or source.endswith(('"', "\\")) or "\r" in source:
        return repr(source)
    return f'r"""{source}"""'
