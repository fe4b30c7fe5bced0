"""Word lists as they are read by people: a paragraph, not one word a line."""

from __future__ import annotations


def words(text: str) -> tuple[str, ...]:
    """The words of a paragraph, in order."""
    return tuple(text.split())
