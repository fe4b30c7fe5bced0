"""A candidate's file as a model sees it: the library's runtime header, the same in every file, is folded to one line.

That saves about 7,000 tokens a step in both directions: an answer may use the line too, and it is unfolded again.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

SOURCE_CHARS = 60_000  # about 15,000 tokens; longer files are shown by their two ends
_HEADERS = {"cpu": "cpu_runtime.h", "cuda": "cuda_runtime.cuh"}


def mark(target: str) -> str:
    """The line that stands for a target's runtime header."""
    return f"// @foundry {target} runtime header@ keep this line: it stands for the library's {_HEADERS[target]}"


def shown(text: str) -> str:
    """The file with its runtime header folded, and its two ends only when it is still too long."""
    for target in _HEADERS:
        header = _header(target)
        if header and header in text:
            text = text.replace(header, mark(target), 1)
    if len(text) <= SOURCE_CHARS:
        return text
    half = SOURCE_CHARS // 2
    return f"{text[:half]}\n# ... {len(text) - 2 * half} characters are not shown ...\n{text[-half:]}"


def unfolded(text: str) -> str:
    """An answer's text with the runtime header back in its place."""
    for target in _HEADERS:
        text = text.replace(mark(target), _header(target))
    return text


@cache
def _header(target: str) -> str:
    file = resources.files("foundry.knowledge.library") / _HEADERS[target]
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""
