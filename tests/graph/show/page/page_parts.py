"""A page as a parser sees it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any


class PageParts(HTMLParser):
    """Collects the elements of a page, its scripts and its links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str, str]] = []  # type and text
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs).get("type") or "", ""))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            kind, text = self.scripts[-1]
            self.scripts[-1] = (kind, text + data)

    @property
    def data(self) -> dict[str, Any]:
        """The page's data, its tables as lists of objects again."""
        (text,) = (text for kind, text in self.scripts if kind == "application/json")
        found: dict[str, Any] = json.loads(text)
        for name, value in found.items():
            if isinstance(value, dict) and value.keys() == {"columns", "rows"}:
                found[name] = [dict(zip(value["columns"], row, strict=True)) for row in value["rows"]]
        return found

    @property
    def policy(self) -> str:
        return next(
            attrs["content"] or ""
            for tag, attrs in self.tags
            if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
        )

    @property
    def addresses(self) -> list[str]:
        """What the page's own markup would load or lead to."""
        named = [attrs.get(name) for _, attrs in self.tags for name in ("src", "href", "action", "data")]
        return [address for address in named if address]


def hashes_of(policy: str) -> set[str]:
    return set(re.findall(r"'sha256-([^']+)'", policy))
