"""The C++ and CUDA texts in a candidate's file, as a compiler sees them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from foundry.knowledge.compiler.file.texts import library_texts
from foundry.tools.audit.text.source import CandidateSource, Unreadable, read_source, string_constants

_TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
_LOOKS_NATIVE = re.compile(r"#\s*include|__global__|extern\s+\"C\"|\b(?:void|float|int|double|asm)\b[^;]*[;{]")


def native_texts(source: CandidateSource) -> Iterator[tuple[int, str]]:
    """Yields (line of the file, text) of string constants that are C++ or CUDA, without Foundry's own run-time headers.

    The headers become empty lines, so that line numbers stay right.
    """
    for statement in source.own:
        for constant in string_constants(statement):
            text = str(constant.value)
            if _LOOKS_NATIVE.search(text):
                for header in runtime_headers():
                    text = text.replace(header, "\n" * header.count("\n"))
                yield constant.lineno, text


@functools.cache
def runtime_headers(*endings: str) -> tuple[str, ...]:
    """Texts of the compiler's run-time headers with these endings (default .h and .cuh), as pasted into candidates."""
    wanted = endings or (".h", ".cuh")
    return tuple(text for name, text in library_texts().items() if name.endswith(wanted))


def strip_comments(text: str, *, strings: bool = True) -> str:
    """C++ text without comments and, if `strings`, without the contents of string and character literals."""

    def blank(match: re.Match[str]) -> str:
        """A comment's line breaks, or one blank; a string literal emptied if `strings`."""
        found = match.group()
        if found.startswith("/"):
            return "\n" * found.count("\n") or " "
        return '""' if strings else found

    return _TOKENS.sub(blank, text.replace("\\\n", " \n"))


def native_code(text: str) -> str:
    """The file's C++ and CUDA texts without comments and Foundry's run-time header; strings stay, asm is in them."""
    source = read_source(text)
    if isinstance(source, Unreadable):
        return ""
    return "\n".join(strip_comments(part, strings=False) for _, part in native_texts(source))
