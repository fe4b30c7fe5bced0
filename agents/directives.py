"""The small language in which a user steers a run, and its parser.

Free text is not an error: with a chat model it is shown to the expert as it stands; the playbook says that it does
not understand and lists the forms.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from foundry.knowledge.candidate import Choice

FORMS: tuple[tuple[str, str], ...] = (
    ("@tiling block 256", "set a tunable (block, tile, unroll, vector, threads, ...) wherever it exists"),
    ("@tiling tile 128x256 on island 2", "set the two sides of a tile, on one island only"),
    ("@tiling unroll 4 in k0", "set a tunable of one kernel"),
    ("@tiling avoid unroll 8", "never use this value"),
    ("@tiling free block", "lift what was said about a tunable or a value"),
    ("@fusion keep bias in the epilogue", "keep a value in registers (also: fuse bias)"),
    ("@fusion split relu", "write a value to memory between two kernels"),
    ("@fusion apply NAME | drop NAME", "use or do not use an exact rewrite"),
    ("pause | resume | stop", "steer the run"),
    ("budget +20 [evaluations/minutes/tokens/dollars]", "give the run more"),
    ("status | best | why c17", "ask about the run"),
)

LONGEST_LINE_CHARS = 2000

_EXPERTS = {
    "tiling": "tiling",
    "memory-tiling": "tiling",
    "memory": "tiling",
    "fusion": "fusion",
    "diagnostician": "diagnostician",
    "debug": "diagnostician",
    "debugging": "diagnostician",
    "auditor": "auditor",
    "audit": "auditor",
    "all": "all",
    "everyone": "all",
    "experts": "all",
}
_UNITS = {
    "evaluation": "evaluations",
    "eval": "evaluations",
    "minute": "minutes",
    "min": "minutes",
    "token": "tokens",
    "dollar": "dollars",
    "usd": "dollars",
}
_NAME = r"[a-z_][\w.\-]*"


@dataclass(frozen=True)
class Understood:
    """A line that matched a form. `to` is an expert, "all" or "run"; `command["verb"]` says which form.

    Verbs for experts: set (name, value, optionally value2, kernel), avoid (name, value), free (name), keep (name),
    split (name), apply (name), drop (name). For the run: pause, resume, stop,
    budget (amount, unit). Questions: status, best, why (candidate).
    """

    to: str
    command: dict[str, Choice] = field(default_factory=dict)
    island: int | None = None
    is_question: bool = False
    says: str = ""  # the acknowledgement, one sentence

    @property
    def verb(self) -> str:
        return str(self.command["verb"])


@dataclass(frozen=True)
class NotUnderstood:
    """A line outside the small language. `to` and `island` are still known, so that a model can be asked."""

    text: str
    to: str
    reason: str
    island: int | None = None

    @property
    def says(self) -> str:
        return f"{self.reason} The playbook understands:\n{forms()}"


Parsed = Understood | NotUnderstood
_Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], tuple[dict[str, Choice], str]]]


def forms() -> str:
    """The documented forms, one a line."""
    width = max(len(form) for form, _ in FORMS)
    return "\n".join(f"  {form.ljust(width)}  {meaning}" for form, meaning in FORMS)


def parse(text: str) -> Parsed:
    """A line of chat as a command, a question, or NotUnderstood; never raises."""
    line = " ".join(text[:LONGEST_LINE_CHARS].split())
    addressed = re.match(r"@([\w\-]+)[:,]?\s*(.*)$", line)
    to = _EXPERTS.get(addressed[1].lower(), "") if addressed else ""
    if addressed and not to:
        if addressed[1].lower() not in _expert_names():
            return NotUnderstood(line, "all", f"There is no expert named {addressed[1]!r}.")
        to = addressed[1].lower()
    body = (addressed[2] if addressed else line).rstrip(".!?").strip()
    body, island = _island(body)
    if not body:
        return NotUnderstood(line, to or "all", "The line says nothing.", island)
    asked = _match(_QUESTIONS, body)
    if asked:
        return Understood(to or "run", asked[0], island, is_question=True, says=asked[1])
    run = _match(_RUN, body)
    if run and not addressed:
        return Understood("run", run[0], island, says=run[1])
    said = _match(_STEERING, body)
    if said:
        return Understood(to or "all", said[0], island, says=_acknowledge(to or "all", said[1], island))
    return NotUnderstood(line, to or "all", f"I do not understand {body!r}.", island)


def _expert_names() -> frozenset[str]:
    from foundry.agents.expert import experts  # imports every expert: only for a name that is not one of the four

    return frozenset(experts())


def _island(body: str) -> tuple[str, int | None]:
    found = re.search(r"\s*\b(?:on|in|at)\s+island\s+(\d+)\b", body, re.IGNORECASE)
    if not found:
        return body, None
    return (body[: found.start()] + body[found.end() :]).strip(), int(found[1])


def _acknowledge(to: str, says: str, island: int | None) -> str:
    who = "every expert" if to == "all" else f"the {to} expert"
    where = "" if island is None else f" on island {island}"
    return f"From the next step, {who}{where} will {says}."


def _match(rules: tuple[_Rule, ...], body: str) -> tuple[dict[str, Choice], str] | None:
    for pattern, build in rules:
        found = pattern.fullmatch(body)
        if found:
            return build(found)
    return None


def _choice(text: str) -> Choice:
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def _rule(pattern: str, build: Callable[[re.Match[str]], tuple[dict[str, Choice], str]]) -> _Rule:
    return re.compile(pattern, re.IGNORECASE), build


def _named(verb: str, says: str) -> Callable[[re.Match[str]], tuple[dict[str, Choice], str]]:
    return lambda found: ({"verb": verb, "name": found["name"].lower()}, says.format(found["name"]))


def _set(found: re.Match[str]) -> tuple[dict[str, Choice], str]:
    parts = found.groupdict()
    command: dict[str, Choice] = {"verb": "set", "name": parts["name"].lower(), "value": _choice(parts["value"])}
    says = f"use {parts['name']} {parts['value']}"
    if parts.get("value2"):
        command["value2"] = _choice(parts["value2"])
        says += f"x{parts['value2']}"
    if parts.get("kernel"):
        command["kernel"] = parts["kernel"]
        says += f" in {parts['kernel']}"
    return command, f"{says} where it is legal"


def _avoid(found: re.Match[str]) -> tuple[dict[str, Choice], str]:
    command: dict[str, Choice] = {"verb": "avoid", "name": found["name"].lower(), "value": _choice(found["value"])}
    return command, f"never use {found['name']} {found['value']}"


def _budget(found: re.Match[str]) -> tuple[dict[str, Choice], str]:
    said = (found["unit"] or ("dollars" if found["dollar"] else "evaluations")).lower()
    unit = _UNITS.get(said.rstrip("s"), said)
    amount = _choice(found["amount"])
    return {"verb": "budget", "amount": amount, "unit": unit}, f"The run gets {amount} more {unit}."


def _word(verb: str, says: str) -> Callable[[re.Match[str]], tuple[dict[str, Choice], str]]:
    return lambda found: ({"verb": verb}, says)


def _about(verb: str, says: str) -> Callable[[re.Match[str]], tuple[dict[str, Choice], str]]:
    def build(found: re.Match[str]) -> tuple[dict[str, Choice], str]:
        candidate = found["candidate"]
        command: dict[str, Choice] = {"verb": verb}
        if candidate:
            command["candidate"] = candidate.lower()
        return command, says.format(candidate.lower() if candidate else "the best candidate")

    return build


_IN_KERNEL = rf"(?:\s+(?:in|of|for|on)\s+(?:kernel\s+)?(?P<kernel>{_NAME}))?"
_KEPT = r"(?:\s+(?:in|inside|within)\s+(?:the\s+)?(?:epilogue|prologue|registers?|kernel)|\s+fused)"

_QUESTIONS: tuple[_Rule, ...] = (
    _rule(r"status|how (?:is it|are we|does it) .*|how far .*", _word("status", "")),
    _rule(r"(?:what(?:'s| is) the )?best(?: so far| candidate)?\??", _word("best", "")),
    _rule(r"(?:why|what|explain|show|tell)\b.*?\b(?P<candidate>c\d+)\b.*", _about("why", "")),
)
_RUN: tuple[_Rule, ...] = (
    _rule(r"pause|wait|hold", _word("pause", "The run pauses at the next safe boundary.")),
    _rule(r"resume|continue|go on", _word("resume", "The run goes on.")),
    _rule(r"stop|finish|quit", _word("stop", "The run finishes with what it has at the next safe boundary.")),
    _rule(
        r"budget\s*\+\s*(?P<dollar>\$?)\s*(?P<amount>\d+(?:\.\d+)?)\s*"
        r"(?P<unit>evaluations?|evals?|minutes?|min|tokens?|dollars?|usd)?",
        _budget,
    ),
)
_STEERING: tuple[_Rule, ...] = (
    _rule(
        rf"(?:avoid|forbid|never(?: use)?|not?|without|do not use)\s+(?P<name>{_NAME})\s*=?\s*(?P<value>\w+)", _avoid
    ),
    _rule(rf"(?:free|release|forget)\s+(?P<name>{_NAME})", _named("free", "choose {} freely again")),
    _rule(
        rf"(?:keep|leave|hold)\s+(?:the\s+)?(?P<name>{_NAME}){_KEPT}?|fuse\s+(?:the\s+)?(?P<name2>{_NAME})(?:{_KEPT})?",
        lambda found: (
            {"verb": "keep", "name": (found["name"] or found["name2"]).lower()},
            f"keep {found['name'] or found['name2']} fused",
        ),
    ),
    _rule(
        rf"(?:split|materiali[sz]e|store)\s+(?:(?:off|at|after|out|the)\s+)*(?P<name>{_NAME})",
        _named("split", "write {} to memory"),
    ),
    _rule(rf"(?:apply|rewrite)\s+(?:the\s+)?(?P<name>{_NAME})", _named("apply", "apply the rewrite {}")),
    _rule(rf"(?:drop|unwrite|undo)\s+(?:the\s+)?(?P<name>{_NAME})", _named("drop", "leave out the rewrite {}")),
    _rule(
        rf"(?:use|set|try|with)?\s*(?P<value>\d+)\s*x\s*(?P<value2>\d+)\s+(?P<name>{_NAME}?)s?{_IN_KERNEL}",
        _set,
    ),
    _rule(
        rf"(?:use|set|try|pin)?\s*(?P<name>{_NAME})\s*(?:=|to|of|:)?\s*(?P<value>\d+)\s*x\s*(?P<value2>\d+){_IN_KERNEL}",
        _set,
    ),
    _rule(rf"(?:use|set|try|pin)?\s*(?P<name>{_NAME})\s*(?:=|to|of|:)?\s*(?P<value>\d+){_IN_KERNEL}", _set),
    _rule(rf"set\s+(?P<name>{_NAME})\s*(?:=|to|:)?\s*(?P<value>\w+){_IN_KERNEL}", _set),
    _rule(rf"(?:use|try|pin)?\s*(?P<name>{_NAME})\s*(?:=|:)\s*(?P<value>\w+){_IN_KERNEL}", _set),
    _rule(rf"(?P<value>\d+)\s+(?P<name>{_NAME}?)s?{_IN_KERNEL}", _set),
)
