"""Prompts are Markdown files with named slots, `{{slot}}`. Sections between `<!-- evolvable: name -->` and
`<!-- /evolvable -->` may be rewritten by a model (`--strategy prompts`): their bodies, never their headings."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

SHIPPED = ""  # the variant that stands in the file
_SLOT = re.compile(r"\{\{(\w+)\}\}")
_MARK = re.compile(r"<!-- /?evolvable[^>]*-->\n")
_HEADING = re.compile(r"^(?=## )", re.MULTILINE)
_SECTION = re.compile(r"<!-- evolvable: ([\w ]+) -->\n(## [^\n]*\n)(.*?)\n<!-- /evolvable -->", re.DOTALL)


@dataclass(frozen=True)
class PromptText:
    """The text of an expert's prompt at a step: the shipped file, or a variant with sections of its own."""

    variant: str = SHIPPED
    sections: Mapping[str, str] = field(default_factory=dict)


@cache
def _file(name: str) -> str:
    """The text of the prompt file of this name, read once in a process."""
    return (resources.files("foundry.agents.prompts") / f"{name}.md").read_text(encoding="utf-8")


@cache
def template(name: str) -> str:
    """The text of prompts/<name>.md without its marks."""
    return _MARK.sub("", _file(name)).strip()


@cache
def sections(name: str) -> Mapping[str, str]:
    """The bodies of the sections of prompts/<name>.md that may be rewritten, by name."""
    return {title: body for title, _, body in _SECTION.findall(_file(name))}


def shipped_digest(name: str) -> str:
    """Names the shipped file: a variant of another one is not used."""
    return hashlib.sha256(_file(name).encode()).hexdigest()[:16]


def with_sections(name: str, text: PromptText) -> str:
    """The prompt with the rewritten bodies under the shipped headings. What follows the prompt stands above them: a
    variant says so itself."""
    if text.variant == SHIPPED:
        return template(name)

    def rewritten(found: re.Match[str]) -> str:
        """The heading and the given text of one evolvable section; its own text, if none is given."""
        return f"{found[2]}{text.sections.get(found[1], found[3])}"

    return f"{_SECTION.sub(rewritten, _file(name)).strip()}\n\n{template('advice')}"


def render(name: str, slots: Mapping[str, str]) -> str:
    """The prompt with its slots filled, each exactly once replaced: values may contain braces.

    A section (from one `## ` heading to the next) with slots of which none has text is left out, and so is a line of
    one slot without text. Raises KeyError for a slot without a value, ValueError for a value without a slot.
    """
    text = template(name)
    wanted = set(_SLOT.findall(text))
    if unknown := set(slots) - wanted:
        raise ValueError(f"prompt {name} has no slot for {', '.join(sorted(unknown))}")
    parts = [part for part in _HEADING.split(text) if _says_something(part, slots)]
    text = "".join(parts)
    for name in wanted:
        if not slots[name]:
            text = re.sub(rf"^\{{\{{{name}\}}\}}\n\n?", "", text, flags=re.MULTILINE)
    return _SLOT.sub(lambda found: slots[found[1]], text)


def _says_something(part: str, slots: Mapping[str, str]) -> bool:
    """True if a part of a template has no slots, or text for at least one of them."""
    asked = _SLOT.findall(part)
    return not asked or any(slots[name].strip() for name in asked)
