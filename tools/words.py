"""Words for people: lists as a paragraph, and texts of others made safe to show."""

from __future__ import annotations


def words(text: str) -> tuple[str, ...]:
    """The words of a paragraph, in order."""
    return tuple(text.split())


def make_printable(text: str) -> str:
    """One line for a terminal: what a file's name or a kernel's last words hold beside text cannot steer it."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in " ".join(text.split()))
