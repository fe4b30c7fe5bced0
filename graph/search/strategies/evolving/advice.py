"""Checks rewritten sections, which may be only plain advice of bounded length.

Each is taken as hostile until it has passed here, each time that it is read.

Nothing rests on these rules alone. A section stands under its shipped heading, in front of the tools and the form of an
answer, which no variant holds; answers, calls and limits are checked by code that reads no prompt.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping

from foundry.agents.expert import experts
from foundry.agents.prompt import sections, shipped_digest
from foundry.knowledge.experience.variants import PromptVariant, variant_id

LEAST_CHARS, MOST_CHARS = 40, 900
LINE_CHARS = 240
REASON_CHARS = 200
FROZEN = frozenset({"auditor"})  # who doubts is not to be rewritten by what its doubts let through
_PLAIN = re.compile(r"[\n\x20-\x7e]*")
_FORMS = (
    (re.compile(r"^\s*(#|---|===|\|)", re.M), "a heading or a rule"),
    (re.compile(r"```|~~~|\{\{|\}\}|[<>{}]"), "a fence, a brace or an angle bracket"),
    (re.compile(r"://|www\.|\S@\S"), "a link or an address"),
    (re.compile(r"^\W*(system|user|assistant|human|developer|tool|ai)\s*:", re.M | re.I), "somebody else's voice"),
)
# What is not advice about kernels: how to answer, what may be called or spent, who checks, what is said elsewhere.
_ELSEWHERE = re.compile(
    r"\b(tools?|json|schema|contracts?|instructions (?:that|above|below|before)|prompts?|directives?|"
    r"audit\w*|grad(?:er|ers|ing)|judges?|"
    r"ignor\w+|disregard\w*|overrid\w+|jailbreak\w*|api[ _-]?keys?|secrets?|passwords?|environ\w*|credentials?|"
    r"subprocess\w*|network|internet|sandbox\w*|budgets?|answers?|reply|respond\w*|torch\.\w+|import \w+|ModelNew)\b",
    re.I,
)


def objection(text: str) -> str:
    """The reason why a text cannot be a section; "" if it can."""
    if not LEAST_CHARS <= len(text.strip()) <= MOST_CHARS:
        return f"it has {len(text.strip())} characters, not {LEAST_CHARS} to {MOST_CHARS}"
    if not _PLAIN.fullmatch(text):
        return "it is not plain ASCII text"
    for pattern, what in _FORMS:
        if pattern.search(text):
            return f"it holds {what}"
    if found := _ELSEWHERE.search(text):
        return f"it speaks of {found[0]!r}, which is not its affair"
    if any(len(line) > LINE_CHARS for line in text.splitlines()):
        return f"a line has more than {LINE_CHARS} characters"
    return ""


def is_usable(variant: PromptVariant) -> bool:
    """True if a variant of the archive belongs to the prompt as shipped today, and holds only advice."""
    expert = experts().get(variant.expert)
    if expert is None or variant.expert in FROZEN or variant.base != shipped_digest(expert.prompt):
        return False
    known = sections(expert.prompt)
    named = variant_id(variant.expert, variant.target, variant.base, variant.sections)
    return (
        named == variant.id
        and bool(variant.sections)
        and all(name in known and not objection(text) for name, text in variant.sections.items())
    )


def wrapped(text: str) -> str:
    """An answer's text in the form of the file: stripped lines, long ones wrapped."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    broken = [textwrap.wrap(line, LINE_CHARS // 2, subsequent_indent="  " * line.startswith("- ")) for line in lines]
    return "\n".join(part for parts in broken for part in parts)


def sections_of(expert: str, changed: Mapping[str, str]) -> dict[str, str]:
    """All sections of an expert's prompt by name; `changed` replaces the shipped ones."""
    return {**sections(experts()[expert].prompt), **changed}
