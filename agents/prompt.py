"""Prompts are Markdown files with named slots, `{{slot}}`. Sections between `<!-- evolvable: name -->` and
`<!-- /evolvable -->` may co-evolve with the kernels (philosophy, strategies, pitfalls, analysis guidance)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

_SLOT = re.compile(r"\{\{(\w+)\}\}")
_MARK = re.compile(r"<!-- /?evolvable[^>]*-->\n")


@cache
def template(name: str) -> str:
    """The text of prompts/<name>.md without its marks."""
    text = (resources.files("foundry.agents.prompts") / f"{name}.md").read_text(encoding="utf-8")
    return _MARK.sub("", text).strip()


def render(name: str, slots: Mapping[str, str]) -> str:
    """The prompt with its slots filled, each exactly once replaced: values may contain braces. Raises KeyError for a
    slot without a value, ValueError for a value without a slot."""
    text = template(name)
    wanted = set(_SLOT.findall(text))
    if unknown := set(slots) - wanted:
        raise ValueError(f"prompt {name} has no slot for {', '.join(sorted(unknown))}")
    return _SLOT.sub(lambda found: slots[found[1]], text)
