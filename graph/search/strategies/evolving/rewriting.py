"""The prompt by which a model rewrites a section of an expert's prompt, and the rules for its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from foundry.agents.expert import experts
from foundry.agents.prompt import PromptText, render
from foundry.agents.prompt_text.sections import Prompt, tokens
from foundry.graph.search.strategies.evolving.advice import MOST_CHARS, REASON_CHARS, objection, sections_of, wrapped
from foundry.graph.search.strategies.evolving.standing import VariantStanding
from foundry.knowledge.device import TargetName
from foundry.knowledge.thought import ExpertName

MOST_ATTEMPTS = 24
ATTEMPT_CHARS = 360


@dataclass(frozen=True)
class RewriteBrief:
    """The evidence. `text` is the one that is rewritten; `standings` are those of the archive when the run began,
    `here` is what each text brought in this run; `attempts` are the run's steps of this expert in words."""

    expert: ExpertName
    target: TargetName
    text: PromptText
    standings: tuple[VariantStanding, ...]
    here: tuple[str, ...]
    attempts: tuple[str, ...]


class SectionAnswer(BaseModel):
    """A rewritten section of an expert's prompt."""

    model_config = ConfigDict(extra="ignore")
    section: str = Field(description="the name of the section")
    text: str = Field(description="its new body, whole")
    reason: str = Field("", description="one sentence: which evidence led to it")


@dataclass(frozen=True)
class RewrittenSection:
    """A section's new body."""

    section: str
    text: str
    reason: str


@runtime_checkable
class PromptEditor(Protocol):
    """A brain that can fill in a form: chat models do."""

    async def fill(
        self,
        expert: ExpertName,
        prompt: Prompt,
        form: type[SectionAnswer],
        refuse: Callable[[SectionAnswer], str],
    ) -> SectionAnswer | None:
        """Asks the expert's model for an answer to which `refuse` does not object; None if it gives none."""
        ...


async def ask_editor(brain: PromptEditor, brief: RewriteBrief) -> RewrittenSection | None:
    """Asks the model for a section. Returns it, or None if the model gives none that may be used."""

    def refuse(answer: SectionAnswer) -> str:
        """The reason why this section's new text may not be used; "" if it may."""
        return refusal(brief, answer.section, answer.text)

    found = await brain.fill(brief.expert, rewrite_prompt(brief), SectionAnswer, refuse)
    if found is None:
        return None
    reason = " ".join(found.reason.encode("ascii", "replace").decode().split())[:REASON_CHARS]
    return RewrittenSection(found.section, wrapped(found.text), reason)


def rewrite_prompt(brief: RewriteBrief) -> Prompt:
    """The user message that asks a model to rewrite a section of an expert's prompt, with what earlier texts
    brought."""
    expert, known = experts()[brief.expert], sections_of(brief.expert, brief.text.sections)
    earlier = [f"- {item.text.variant}: {item.words}" for item in brief.standings]
    text = render(
        "rewrite",
        {
            "expert": expert.name,
            "target": brief.target,
            "mandate": expert.mandate,
            "sections": "\n\n".join(f"### {name}\n{body}" for name, body in known.items()),
            "texts": "\n".join([*earlier, *(f"- in this run: {line}" for line in brief.here)]),
            "attempts": _attempts(brief.attempts),
            "names": ", ".join(known),
            "most": str(MOST_CHARS),
        },
    )
    return Prompt(text, 0, {"rewrite": tokens(len(text))})


def _attempts(lines: Sequence[str]) -> str:
    """The latest attempts, each in one bounded line without "<"; "nothing" if there are none."""
    shown = [" ".join(line.replace("<", "(").split())[:ATTEMPT_CHARS] for line in lines[-MOST_ATTEMPTS:]]
    return "\n".join(f"- {line}" for line in shown) or "nothing"


def refusal(brief: RewriteBrief, section: str, text: str) -> str:
    """The reason why an answer cannot be used (unknown section, forbidden text, no change); "" if it can."""
    known = sections_of(brief.expert, brief.text.sections)
    if section not in known:
        return f"there is no section {section[:40]!r}: {', '.join(known)}"
    if why := objection(wrapped(text)):
        return f"the text of {section}: {why}"
    return "it says what stood there before" if wrapped(text) == known[section] else ""
