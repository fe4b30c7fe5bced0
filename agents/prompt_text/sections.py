"""The sections of a prompt, each with a budget of characters; text beyond it is cut, and the trace records the cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

CHARS_PER_TOKEN = 3.5  # mean over prose and code


@dataclass(frozen=True)
class Section:
    """The text of one slot of a prompt, and the most characters that it may take.

    `ends` True keeps both ends of a text that is too long, False only its beginning.
    """

    slot: str
    text: str
    most: int
    ends: bool = False


@dataclass(frozen=True)
class Prompt:
    """`standing` characters from its begin are the same at every step of a run. `sizes`: tokens by section, roughly;
    `cut`: characters that are not shown, by section."""

    text: str
    standing: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    cut: Mapping[str, int] = field(default_factory=dict)


def cut(text: str, most: int) -> str:
    """The text, or its two ends and how much is left out between them."""
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end]}\n[... {len(text) - most} of {len(text)} characters are cut here ...]\n{text[-end:]}"


def fit(sections: Sequence[Section]) -> tuple[dict[str, str], dict[str, int]]:
    """(slot -> text within its budget, slot -> characters that are not shown)."""
    slots: dict[str, str] = {}
    left_out: dict[str, int] = {}
    for section in sections:
        slots[section.slot] = cut(section.text, section.most) if section.ends else first_lines(section)
        if len(section.text) > section.most:
            left_out[section.slot] = len(section.text) - section.most
    return slots, left_out


def first_lines(section: Section) -> str:
    """The text's first lines as far as they fit, and how many are cut."""
    if len(section.text) <= section.most:
        return section.text
    kept = section.text[: section.most].rpartition("\n")[0] or section.text[: section.most]
    return f"{kept}\n[... {section.text[len(kept) :].count(chr(10))} more lines are cut ...]"


def tokens(characters: int) -> int:
    """Estimate of the tokens in so many characters."""
    return round(characters / CHARS_PER_TOKEN)
