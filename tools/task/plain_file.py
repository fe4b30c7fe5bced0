"""Reads files that a user named: up to a size, without ever blocking, byte for byte, without running them."""

from __future__ import annotations

import ast
import os
import re
import stat
from pathlib import Path

from foundry.knowledge import syntax
from foundry.knowledge.errors import UsageError

SOURCE_BYTES = 1 << 20  # bytes; source text has some kB, a generated kernel a hundred; a MB of code takes 3 s to parse
KERNEL_BYTES = 4 << 20  # bytes; the kernels of a network of 200 layers have 2.6 MB, nearly all of it one string
_LONG_STRINGS = re.compile(r"\"{3}.*?\"{3}|'{3}.*?'{3}", re.DOTALL)
DEEPEST = 200  # levels of a syntax tree: recursive readers need three frames a level, and Python gives 1000
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_bytes(path: Path, *, largest_bytes: int = SOURCE_BYTES) -> bytes:
    """The content of a regular file; raises UsageError in one line.

    A pipe or a device could block for ever or never end, so it is refused before a byte is read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}", "check the path") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {_reason(error)}") from None
    try:
        kind = os.fstat(handle).st_mode
        if stat.S_ISDIR(kind):
            raise UsageError(f"{path} is a directory, not a file")
        if not stat.S_ISREG(kind):
            raise UsageError(f"{path} is no regular file")
        content = _read(handle, largest_bytes + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {_reason(error)}") from None
    finally:
        os.close(handle)
    if len(content) > largest_bytes:
        raise UsageError(f"{path} is larger than {largest_bytes:,} bytes")
    return content


def read_source(path: Path, *, largest_bytes: int = SOURCE_BYTES) -> str:
    """UTF-8 text with its line ends as they are, so that its hash is the file's; raises UsageError in one line."""
    content = read_bytes(path, largest_bytes=largest_bytes)
    if content.startswith(BYTE_ORDER_MARK):
        raise UsageError(f"{path} begins with a byte order mark", "save it as UTF-8 without one")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})") from None


def read_kernel(path: Path) -> str:
    """A candidate's file as text; raises UsageError in one line. Device code is a string, which costs no parsing."""
    text = read_source(path, largest_bytes=KERNEL_BYTES)
    if len(text) > SOURCE_BYTES and len(_LONG_STRINGS.sub("", text)) > SOURCE_BYTES:
        raise UsageError(f"{path} has more than {SOURCE_BYTES:,} characters of Python beside its long strings")
    return text


def parse_python(text: str, name: str = "candidate.py") -> ast.Module:
    """The syntax tree; raises SyntaxError with a line for text that is not Python or is nested too deeply."""
    try:
        tree = syntax.parse(text, name)
    except (ValueError, MemoryError, RecursionError) as error:  # null bytes; absurdly nested expressions
        raise SyntaxError(str(error) or "nested too deeply", (name, 1, 0, "")) from None
    level: list[ast.AST] = [tree]
    for _ in range(DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return tree
    line = next((node.lineno for node in level if isinstance(node, ast.expr | ast.stmt)), 1)
    raise SyntaxError("nested too deeply", (name, line, 0, ""))


def _read(handle: int, most: int) -> bytes:
    """Reads at most `most` bytes of an open file."""
    parts: list[bytes] = []
    while most > 0 and (part := os.read(handle, min(most, 1 << 20))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def _reason(error: Exception) -> str:
    """The system's message of an OSError, else the error's text."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
