"""docs/troubleshooting.md quotes messages that the code says, and every exit code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from foundry.knowledge.errors import FoundryError

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
TITLES = ("code", "verdict", "message", "evidence", "line of the doctor")  # first cells of the tables' headings
MESSAGES = [
    quoted
    for part in re.split(r"\n\n", PAGE)
    if re.match(r"\| (message|evidence|line of the doctor) \|", part)
    for quoted in re.findall(r"^\| `([^`]+)` \|", part, re.MULTILINE)
]


@cache
def texts() -> tuple[str, ...]:
    """Every string of the product's code and its templates, with "..." in place of each value that it shows."""
    found: list[str] = []
    for folder in ("agents", "graph", "tools", "knowledge"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
                elif isinstance(node, ast.JoinedStr):
                    found.append("".join(_part(value) for value in node.values))
        found += [
            re.sub(r"\{[^{}\n]*\}", "...", path.read_text()) for path in sorted((ROOT / folder).rglob("*.py.txt"))
        ]
    return tuple(found)


def _part(value: ast.expr) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else "..."


@pytest.mark.parametrize("message", MESSAGES)
def test_the_code_says_what_the_page_quotes(message: str) -> None:
    assert any(message in text for text in texts()), f"no string of the code holds: {message}"


def test_the_page_has_messages_of_every_kind() -> None:
    headings = set(re.findall(r"\n\n\| ([a-z ]+) \|", PAGE))
    assert headings == set(TITLES) and len(MESSAGES) > 50


def test_the_page_lists_every_exit_code_of_the_errors() -> None:
    def codes(error: type[FoundryError]) -> set[int]:
        return {error.exit_code}.union(*(codes(kind) for kind in error.__subclasses__()))

    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert codes(FoundryError) | {0, 130} == listed
