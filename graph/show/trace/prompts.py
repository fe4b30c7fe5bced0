"""Prompts and answers of chat models, as the run's folder keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from foundry.graph.run.events import Event
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.trace.selection import harmless
from foundry.knowledge.errors import UsageError


@dataclass(frozen=True)
class ModelCall:
    """One call of a chat model. `bad_answer` and `repair` are "" unless the first answer could not be used."""

    event: Event
    system: str
    prompt: str
    bad_answer: str
    repair: str
    answer: str

    @property
    def texts(self) -> list[tuple[str, str]]:
        """(kind, text) of the call's texts in their order, without empty ones."""
        parts = [
            ("system", self.system),
            ("prompt", self.prompt),
            ("first answer, which could not be used", self.bad_answer),
            ("repair", self.repair),
            ("answer", self.answer),
        ]
        return [part for part in parts if part[1]]

    @property
    def said(self) -> list[tuple[str, str]]:
        """(role, text) of the call's messages: "system", "user" or "assistant"."""
        roles = {"system": "system", "prompt": "user", "repair": "user"}
        return [(roles.get(name, "assistant"), text) for name, text in self.texts]


def is_call(event: Event) -> bool:
    """True if an event is a call of a chat model; it has the call's cost and lies inside the expert's span."""
    return event.kind == "expert" and "requests" in event.data


def call_of(run: RunDirectory, event: Event) -> ModelCall:
    """The call of an event with its texts."""
    texts = (_text(run, event.data.get(name, "")) for name in ("system", "prompt", "bad_answer", "repair", "answer"))
    return ModelCall(event, *texts)


def _text(run: RunDirectory, digest: str) -> str:
    """The text under a digest; in brackets the reason why it is lost."""
    try:
        return run.text(digest) if digest else ""
    except UsageError as error:
        return f"({error})"


def prompt_lines(run: RunDirectory, events: Iterable[Event], began: float) -> Iterator[str]:
    """Each call, its texts under headings. A system prompt is told once, because it is the same at every step."""
    told: set[str] = set()
    for event in events:
        if not is_call(event):
            continue
        data, call = event.data, call_of(run, event)
        yield (
            f"=== {event.started - began:.1f} s  {event.step}  {event.name} {data['purpose']} by {data['model']}: "
            f"{data['outcome']}, {data['prompt_tokens']} + {data['completion_tokens']} tokens, {data['call_s']:.1f} s"
        )
        for name, text in call.texts:
            if name == "system" and text in told:
                yield "--- system: as before"
                continue
            told.add(text)
            yield f"--- {name}"
            yield from map(harmless, text.splitlines())
