"""Python's parser, one text at a time.

CPython 3.11 counts the depth of the tree being built in one place for all threads. It raises SystemError ("AST
constructor recursion depth mismatch") if two threads build one at once (CPython issue 106905). Islands and planted
faults run in threads.
"""

from __future__ import annotations

import ast
import threading

_LOCK = threading.RLock()  # reentrant, because a finalizer may run, and parse, during a parse


def parse(text: str, name: str = "<unknown>") -> ast.Module:
    """ast.parse for any thread. Raises what ast.parse does: SyntaxError, ValueError, RecursionError, MemoryError."""
    with _LOCK:
        return ast.parse(text, filename=name)
