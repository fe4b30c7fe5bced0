"""Words for people: lists as a paragraph, texts of others made safe to show, commands to copy and paste."""

from __future__ import annotations

import shlex


def words(text: str) -> tuple[str, ...]:
    """The words of a paragraph, in order."""
    return tuple(text.split())


def count_words(number: int, thing: str) -> str:
    """`1 evaluation`, `8 evaluations`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def make_printable(text: str) -> str:
    """One line for a terminal: what a file's name or a kernel's last words hold beside text cannot steer it."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in " ".join(text.split()))


def to_paste(*command: object) -> str:
    """A command as a shell takes it when a user pastes it: a path with a space or an accent is quoted."""
    return shlex.join(map(str, command))
