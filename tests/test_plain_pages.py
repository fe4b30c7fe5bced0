"""The pages for users are plain: short sentences, and the field's own words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Sentences of the first are the help texts of the code; those of the second are lists of names.
GENERATED = {"docs/commands.md", "docs/what_foundry_takes.md"}
PAGES = [
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/h200/README.md"),
    *sorted(name for path in (ROOT / "docs").glob("*.md") if (name := f"docs/{path.name}") not in GENERATED),
]
MOST_WORDS = 25  # of one sentence
OUR_OWN_WORDS = ("rival", "strand", "whoever", "nobody", "undertaker")  # the field has better ones


def blocks(text: str) -> Iterator[str]:
    """Paragraphs, list items and cells of tables; no code and no comments."""
    text = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    for part in re.split(r"\n\s*\n", text):
        if part.startswith("|"):
            yield from (cell for line in part.splitlines() for cell in line.strip("| ").split(" | "))
        else:
            yield from re.split(r"\n(?=\s*(?:- |\d+\. |#))", part)


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page; code and the addresses of links do not count."""
    for block in blocks(text):
        line = re.sub(r"`[^`]*`", "code", " ".join(block.split()))
        line = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", line).replace("**", "")
        yield from re.split(r"(?<=[.?!:;])\)?\s+", line)


def word_count(sentence: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


@pytest.mark.parametrize("name", PAGES)
def test_no_sentence_is_too_long(name: str) -> None:
    found = [sentence for sentence in sentences((ROOT / name).read_text()) if word_count(sentence) > MOST_WORDS]
    assert not found, f"{name}: more than {MOST_WORDS} words"


@pytest.mark.parametrize("name", PAGES)
def test_pages_use_the_field_s_words(name: str) -> None:
    text = (ROOT / name).read_text().lower()
    assert [word for word in OUR_OWN_WORDS if re.search(rf"\b{word}s?\b", text)] == []
