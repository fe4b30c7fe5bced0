"""The small language in which a user steers a run, and its parser: a verb and what it takes, a row of a table for each.

A line is cut into words, numbers and `=`; a row fits the whole line or not at all. Nothing inside a word is ever a name
and a value (`c17`, `bf16`), and a word of the language is never a name. Whether a run knows the names is for
`explanation`.

Free text is not an error: with a chat model it is shown to the expert as it stands, and a question is answered by the
model; the playbook lists the verbs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from foundry.knowledge.candidate import Choice
from foundry.knowledge.thought import Directive

FORMS: tuple[tuple[str, str], ...] = (
    ("@tiling block 256", "set a tunable (block, tile, unroll, vector, threads, ...) wherever it exists"),
    ("@tiling tile 128x256 on island 2", "set the two sides of a tile, on one island only"),
    ("@tiling set unroll 4 in k_softmax", "set a tunable of one kernel; the word set may be left out"),
    ("@tiling schedule=static", "a value that is a word needs = or `to` before it"),
    ("@tiling avoid unroll 8", "never use this value"),
    ("@tiling free block", "lift what was said about a tunable or a value"),
    ("@fusion keep bias in the epilogue", "keep a value in registers (also: fuse bias)"),
    ("@fusion split relu", "write a value to memory between two kernels"),
    ("@fusion apply NAME | drop NAME", "use or do not use an exact rewrite"),
    ("pause | resume | stop [island 2]", "steer the run, or one island"),
    ("try my_kernel.py [on island 2]", "evaluate a file with class ModelNew as a candidate, and search on from it"),
    ("start from c17 [on island 2]", "the next step begins at this candidate"),
    ("freeze c17 | thaw c17", "no step begins at this candidate any more; it may still win"),
    ("add island [ROLE] | role ROLE on island 2", "one island more; a role: fusion, memory, parameters, algorithm"),
    ("model NAME | model playbook", "who thinks from the next step on"),
    (
        "budget +20 | budget -20 [minutes/tokens/dollars/calls]",
        "give the run more or less; evaluations if nothing is said",
    ),
    ("directives | withdraw d3", "what was said and what came of it; take it back"),
    ("status | best | cost | help", "ask about the run"),
    ("ranking | why c17", "who won, and why a candidate lost or was rejected"),
    ("show c17 | diff c17 c12 | tried fusion", "a kernel, a difference, the steps about something"),
)

LONGEST_LINE_CHARS = 2000
ADDRESSED = ("tiling", "fusion", "diagnostician", "auditor", "all")  # further experts are looked up


@dataclass(frozen=True)
class RunQuestion:
    """A line that asks about the run: status, best, ranking, cost, directives, help, why, show, diff or tried.
    `candidate`, `other` and `about` (what the steps asked for have to do with) are "" where it names none."""

    verb: str
    candidate: str = ""
    other: str = ""
    about: str = ""


@dataclass(frozen=True)
class NotUnderstood:
    """A line outside the small language: a directive without a command, which a chat model can read, and why.
    `is_plain`: the reason says what to change, and the list of verbs would hide it."""

    directive: Directive
    reason: str
    is_plain: bool = False


Parsed = Directive | RunQuestion | NotUnderstood


@dataclass(frozen=True)
class _Form:
    """One thing to say: a row of words, `a|b` either, `[...]` may be missing, capitals are slots. `promise` is what the
    reader of such a line will do, filled from its command."""

    verb: str
    row: str
    promise: str = ""


_QUESTIONS = tuple(
    _Form(row.split()[0], row)
    for row in (
        *("status", "best", "ranking", "cost", "directives", "why CANDIDATE", "show CANDIDATE"),
        *("diff CANDIDATE [OTHER]", "tried [ABOUT]", "help"),
    )
)
_RUN = (
    _Form("pause", "pause", "The run pauses when the steps at work have ended."),
    _Form("resume", "resume", "The run goes on."),
    _Form("stop", "stop", "The run finishes with what it has when the steps at work have ended."),
    _Form("budget", "budget AMOUNT [UNIT]", "The run gets {amount} more {unit}."),
)
_ORDERS = (
    _Form("try", "try FILE", "evaluate {file} in its next step"),
    _Form("from", "start from CANDIDATE", "begin its next step at {candidate}"),
    _Form("freeze", "freeze CANDIDATE", "begin no further step at {candidate}"),
    _Form("thaw", "thaw CANDIDATE", "begin steps at {candidate} again"),
    _Form("role", "role ROLE", "search in the role of {role} from its next step on"),
    _Form("add", "add island [ROLE]"),
    _Form("model", "model MODEL"),
    _Form("withdraw", "withdraw NUMBERED"),
)
ISLAND_ORDERS = ("try", "from", "freeze", "thaw", "role")  # each island takes them for itself
_STEERING = (
    _Form("avoid", "avoid NAME [=] NUMBER|PAIR", "never use {name} {value}"),
    _Form("avoid", "avoid NAME =|to WORD", "never use {name} {value}"),
    _Form("free", "free NAME", "choose {name} freely again"),
    _Form("keep", "keep|fuse NAME [in the epilogue]", "keep {name} fused"),
    _Form("split", "split NAME", "write {name} to memory"),
    _Form("apply", "apply NAME", "apply the rewrite {name}"),
    _Form("drop", "drop NAME", "leave out the rewrite {name}"),
    _Form("set", "[set] NAME [=|to] NUMBER|PAIR [in KERNEL]", "use {name} {value}{in_kernel} where it is legal"),
    _Form("set", "[set] NAME =|to WORD [in KERNEL]", "use {name} {value}{in_kernel} where it is legal"),
)
_UNITS = ("evaluation", "minute", "token", "dollar", "call")
_SLOTS = {
    "NAME": r"(?P<name>{name})",
    "KERNEL": r"(?P<kernel>{name})",
    "CANDIDATE": r"(?P<candidate>c\d+)",
    "OTHER": r"(?P<other>c\d+)",
    "NUMBER": r"(?P<value>\d+)",
    "PAIR": r"(?P<first>\d+)x(?P<second>\d+)",
    "WORD": r"(?P<word>[a-z][\w\-]*)",
    "NUMBERED": r"d(?P<directive>\d+)",
    "ROLE": r"(?P<role>fusion|memory|parameters|algorithm)",
    "ABOUT": r"(?P<about>[\w.\-]+)",
    "AMOUNT": r"(?P<amount>[+-]\d+(?:\.\d+)?)",
    "UNIT": rf"(?P<unit>{'|'.join(_UNITS)})s?",
    "FILE": r"(?P<file>\S+\.\w+)",
    "MODEL": r"(?P<model>\S+)",
}
_TOKEN = re.compile(r"=|[^\s=]+")
_SIGNS = re.compile(r"[^\w\s]")


def forms() -> str:
    """The documented forms, one a line."""
    width = max(len(form) for form, _ in FORMS)
    return "\n".join(f"  {form.ljust(width)}  {meaning}" for form, meaning in FORMS)


def verbs(*, to_experts: bool | None = None) -> tuple[str, ...]:
    """The beginnings of valid lines, such as `start from`.

    `to_experts` True gives those of directives to experts, False those of questions and orders to the run, None both.
    """
    told = (*_QUESTIONS, *_RUN, *_ORDERS) if to_experts is not True else ()
    rows = [form.row for form in (*told, *(_STEERING if to_experts is not False else ()))]
    return tuple(dict.fromkeys(re.sub(r"[\[\]]|\|\S+| [\[A-Z=].*", "", row) for row in rows))


_VERBS = frozenset(verb.split()[0] for verb in verbs())


def parse(text: str) -> Parsed:
    """A line of chat as a directive with its command, a question, or NotUnderstood; never raises."""
    line = " ".join(text[:LONGEST_LINE_CHARS].split())
    addressed = re.match(r"@([\w\-]+)[:,]?\s*(.*)$", line)
    to = addressed[1].lower() if addressed else "all"
    if to not in ADDRESSED and to not in _expert_names():
        return NotUnderstood(Directive(0, "all", text.strip()), _no_expert(to), is_plain=True)
    body = (addressed[2] if addressed else line).rstrip(".!?").strip()
    body, island = _island(body)
    free = Directive(0, to, text.strip(), {}, island)
    if not body:
        return NotUnderstood(free, "The line says nothing.")
    if found := _match(_QUESTIONS, body):
        return RunQuestion(*(str(found.get(slot, "")) for slot in ("verb", "candidate", "other", "about")))
    if not addressed and (found := _match((*_ORDERS, *_RUN), body)):
        return replace(free, to="run", command=found)
    if found := _match(_STEERING, body):
        return replace(free, command=found)
    first = body.split()[0].lower()
    usage = [form for row, _ in FORMS for form in row.split(" | ") if first in _VERBS and first in form.split()]
    hint = f" `{first}` is said like this: {usage[0]}" if usage else ""
    return NotUnderstood(free, f"I do not understand {body!r}.{hint}", is_plain=bool(usage))


def _promise_order(directive: Directive) -> str:
    """The acknowledgement of an order about candidates, islands or the models."""
    command = directive.command
    if directive.verb == "add":
        role = f", in the role of {command['role']}" if "role" in command else ""
        return f"Every island ends its step, then one more begins{role}."
    if directive.verb == "model":
        return f"From the next step, {command['name']} thinks."
    if directive.verb == "withdraw":
        return f"d{command['directive']} is taken back: no further step follows it."
    who = "every island" if directive.island is None else f"island {directive.island}"
    deed = next(form.promise for form in _ORDERS if form.verb == directive.verb).format(**command)
    return f"{who[0].upper()}{who[1:]} will {deed}."


def promise(directive: Directive) -> str:
    """The acknowledgement of a command in one sentence: what the run or the expert will do from the next step on."""
    command = directive.command
    if directive.to == "run" and directive.verb in {form.verb for form in _ORDERS}:
        return _promise_order(directive)
    if directive.to == "run" and directive.island is not None:
        return f"Island {directive.island}: {directive.verb} at its next step."
    if directive.verb == "budget" and str(command["amount"]).startswith("-"):
        return f"The run gets {str(command['amount'])[1:]} {command['unit']} less."
    form = next(form for form in (*_RUN, *_STEERING) if form.verb == directive.verb)
    in_kernel = f" in {command['kernel']}" if "kernel" in command else ""
    pair = {"value": f"{command['value']}x{command['value2']}"} if "value2" in command else {}
    deed = form.promise.format(**{**command, **pair, "in_kernel": in_kernel})
    if directive.to == "run":
        return deed
    where = "" if directive.island is None else f" on island {directive.island}"
    return f"From the next step, {addressee(directive)}{where} will {deed}."


def addressee(directive: Directive) -> str:
    """The receiver of a directive, in words."""
    return "every expert" if directive.to in ("", "all") else f"the {directive.to} expert"


def words(text: str) -> tuple[str, ...]:
    """The words of a line that are not the language's own: what a user may have meant as names."""
    found = _SIGNS.sub(" ", text[:LONGEST_LINE_CHARS].lower()).split()
    return tuple(word for word in dict.fromkeys(found) if word not in _own_words() and not word.isdigit())


def _expert_names() -> frozenset[str]:
    """Names of all experts; imports them."""
    from foundry.agents.expert import experts  # imports every expert: only for a name that is not one of the four

    return frozenset(experts())


def _no_expert(name: str) -> str:
    """The sentence that there is no expert of this name, with the known ones."""
    known = ", ".join(f"@{expert}" for expert in sorted(_expert_names()))
    return f"There is no expert named {name!r}; there are {known}, and @all speaks to each of them."


def _island(body: str) -> tuple[str, int | None]:
    """The line without the island at its end, and that island's number."""
    found = re.search(r"\s+(?:on\s+)?island\s+(\d+)$", body, re.IGNORECASE)
    return (body[: found.start()], int(found[1])) if found else (body, None)


@cache
def _own_words() -> frozenset[str]:
    """The literal words of all forms, which are never names; without "epilogue", which stands for all values in it."""
    rows = " ".join(form.row for form in (*_QUESTIONS, *_RUN, *_STEERING))
    return frozenset(re.findall(r"(?<![A-Z])[a-z]+", rows)) - {"epilogue"}


@cache
def _pattern(row: str) -> re.Pattern[str]:
    """The regular expression of a form's row: each word or slot as a whole token, `[...]` optional, `a|b` either."""
    name = rf"(?!(?:{'|'.join(sorted(_own_words()))}|c\d+) )[a-z_][\w.\-]*"
    parts = []
    for element in re.findall(r"[\[\]]|[^\s\[\]]+", row):
        if element in "[]":
            parts.append({"[": "(?:", "]": ")?"}[element])
        else:
            either = [_SLOTS.get(one, re.escape(one)).replace("{name}", name) for one in element.split("|")]
            parts.append(f"(?:{'|'.join(either)}) ")
    return re.compile("".join(parts), re.IGNORECASE)


def _match(table: tuple[_Form, ...], body: str) -> dict[str, Choice] | None:
    """The command of the first form that the whole line fits; only files and models keep their spelling."""
    said = " ".join(_TOKEN.findall(body)) + " "
    for form in table:
        if found := _pattern(form.row).fullmatch(said if form.verb in ("try", "model") else said.lower()):
            return _command(form.verb, {slot: text for slot, text in found.groupdict().items() if text})
    return None


def _command(verb: str, slots: Mapping[str, str]) -> dict[str, Choice]:
    """The directive's command from what the parser found in its slots: verb, names, values as numbers."""
    command: dict[str, Choice] = {"verb": verb}
    if name := slots.get("name") or slots.get("model"):
        command["name"] = name
    if "first" in slots:
        pair = (int(slots["first"]), int(slots["second"]))
        command |= {"value": pair[0], "value2": pair[1]} if verb == "set" else {"value": f"{pair[0]}x{pair[1]}"}
    elif value := slots.get("value") or slots.get("word"):
        command["value"] = int(value) if value.isdigit() else value
    if "amount" in slots:
        amount = slots["amount"].removeprefix("+")
        command["amount"] = amount if "." in amount else int(amount)
        command["unit"] = f"{slots.get('unit', 'evaluation')}s"
    if "directive" in slots:
        command["directive"] = int(slots["directive"])
    return command | {
        slot: slots[slot] for slot in ("kernel", "candidate", "other", "about", "role", "file") if slot in slots
    }
