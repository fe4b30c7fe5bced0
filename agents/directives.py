"""The small language in which a user steers a run, and its parser: a tokeniser and a table of forms.

A line is cut into words, numbers and signs; a form is a row of them. Nothing inside a word is ever a name and a value
(`c17`, `bf16`), and a word of the language is never a name. Whether a run knows the names is for `explanation`.

Free text is not an error: with a chat model it is shown to the expert as it stands; the playbook says that it does
not understand and lists the forms.
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
    ("@tiling unroll 4 in k_softmax", "set a tunable of one kernel"),
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
    ("show c17 | diff c17 c12 | what did you try on fusion", "a kernel, a difference, the steps about something"),
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
    "call": "calls",
}


@dataclass(frozen=True)
class RunQuestion:
    """A line that asks about the run: status, best, ranking, cost, directives, help, why, show, diff or tried.
    `candidate`, `other` and `about` (what the steps asked for have to do with) are "" where it names none; `about` may
    be a place in the ranking instead: `third`."""

    verb: str
    candidate: str = ""
    other: str = ""
    about: str = ""


@dataclass(frozen=True)
class NotUnderstood:
    """A line outside the small language: a directive without a command, which a chat model can read, and why.
    `is_plain`: the reason says what to change, and a list of forms would hide it."""

    directive: Directive
    reason: str
    is_plain: bool = False


Parsed = Directive | RunQuestion | NotUnderstood


@dataclass(frozen=True)
class _Form:
    """One thing to say. `rows`: its words in order; `a|b` either, `[...]` may be missing, `[...]*` any number of times,
    capitals are slots, `...` anything. `promise` is what the reader of such a line will do, filled from its command."""

    verb: str
    rows: tuple[str, ...]
    promise: str = ""
    needs: str = ""  # what is missing when a line begins like this form and does not go on like it


_IN = "[in|of|for|on [kernel] KERNEL]"
_KEPT = "[in|inside|within [the] epilogue|prologue|register|registers|kernel] [fused]"
_QUESTIONS = (
    _Form("status", ("status", "how is|are|does it|we ...", "how far ...")),
    _Form("best", ("[what is|what's|whats] [the] best [so far] [candidate]",)),
    _Form("ranking", ("ranking|rank|ranks|top|candidates|leaderboard|finalists", "who won|wins|leads")),
    _Form("cost", ("cost|costs|budget", "what did it cost", "how much did|does it cost")),
    _Form("help", ("help", "what can|may i say|do|ask")),
    _Form("directives", ("directives", "list [the] directives")),
    _Form("diff", ("diff|compare|difference [between] CANDIDATE [and|with|from|to] [OTHER]",)),
    _Form("show", ("show|print [me] [the] [code|source|file|kernel] [of] CANDIDATE", "source|code [of] CANDIDATE")),
    _Form(
        "tried",
        (
            "what did|have you|they|we|experts try|tried|done [already] [so far] [on|with|for|about|in [the] ABOUT]",
            "what was|is tried [already] [so far] [on|with|for|about|in [the] ABOUT]",
            "tried [ABOUT]",
        ),
    ),
    _Form("why", ("why|what|explain|show|tell ... CANDIDATE ...", "why ... PLACE ...")),
)
_RUN = (
    _Form("pause", ("pause|wait|hold",), "The run pauses when the steps at work have ended."),
    _Form("resume", ("resume|continue", "go on"), "The run goes on."),
    _Form("stop", ("stop|finish|quit",), "The run finishes with what it has when the steps at work have ended."),
    _Form("budget", ("budget + [DOLLAR] AMOUNT [UNIT]",), "The run gets {amount} more {unit}."),
    _Form("budget", ("budget LESS [DOLLAR] AMOUNT [UNIT]",)),
)
_ORDERS = (
    _Form("try", (), "evaluate {file} in its next step"),
    _Form("from", ("start|begin|continue from|at|with CANDIDATE",), "begin its next step at {candidate}"),
    _Form("freeze", ("freeze CANDIDATE",), "begin no further step at {candidate}"),
    _Form("thaw", ("thaw|unfreeze CANDIDATE",), "begin steps at {candidate} again"),
    _Form("role", ("role [to] ROLE",), "search in the role of {role} from its next step on"),
    _Form("add", ("add|another|new [an|one] [more] island [as|for|with|in] [the] [role] [of] [ROLE]",)),
    _Form("model", ()),
    _Form("withdraw", ("withdraw|revoke|forget|undo NUMBERED",)),
)
ISLAND_ORDERS = ("try", "from", "freeze", "thaw", "role")  # each island takes them for itself
_STEERING = (
    _Form(
        "avoid",
        (
            "avoid|forbid|never|no|not|without [use] NAME [=|:] NUMBER|PAIR",
            "avoid|forbid|never|no|not|without [use] NAME =|:|to WORD",
            "do not use NAME [=|:] NUMBER|PAIR",
            "do not use NAME =|:|to WORD",
        ),
        "never use {name} {value}",
        "`{0}` forbids one value of a tunable, as in `avoid unroll 8`.",
    ),
    _Form("free", ("free|release|forget NAME",), "choose {name} freely again", "`{0}` needs a name: `free block`."),
    _Form(
        "keep",
        (f"keep|leave|hold|fuse [the] NAME {_KEPT}",),
        "keep {name} fused",
        "`{0}` needs the name of a value: `keep bias in the epilogue`.",
    ),
    _Form(
        "split",
        ("split|materialise|materialize|store [off|at|after|out|the]* NAME",),
        "write {name} to memory",
        "`{0}` needs the name of a value: `split relu`.",
    ),
    _Form("apply", ("apply|rewrite [the] NAME",), "apply the rewrite {name}", "`{0}` needs the name of a rewrite."),
    _Form(
        "drop", ("drop|unwrite|undo [the] NAME",), "leave out the rewrite {name}", "`{0}` needs the name of a rewrite."
    ),
    _Form(
        "set",
        (
            f"[use|set|try|with|pin] NAME [=|:|to|of] NUMBER|PAIR {_IN}",
            f"[use|set|try|with|pin] NUMBER|PAIR NAMES {_IN}",
            f"[use|set|try|with|pin] NAME =|:|to WORD {_IN}",
        ),
        "use {name} {value}{in_kernel} where it is legal",
        "`{0}` needs a tunable and a value, as in `unroll 4` or `schedule=static`.",
    ),
)
_SLOTS = {
    "NAME": r"(?P<name>{name})",
    "NAMES": r"(?P<names>{name})",
    "KERNEL": r"(?P<kernel>{name})",
    "CANDIDATE": r"(?P<candidate>c\d+)",
    "NUMBER": r"(?P<value>\d+)",
    "PAIR": r"(?P<first>\d+)x(?P<second>\d+)",
    "WORD": r"(?P<word>[a-z][\w\-]*)",
    "PLACE": r"(?P<place>second|third|fourth|fifth)(?:-best)?",
    "OTHER": r"(?P<other>c\d+)",
    "NUMBERED": r"d(?P<directive>\d+)",
    "ROLE": r"(?P<role>fusion|memory|parameters|algorithm)",
    "ABOUT": r"(?P<about>[\w.\-]+)",
    "LESS": r"(?P<less>-)",
    "AMOUNT": r"(?P<amount>\d+(?:\.\d+)?)",
    "DOLLAR": r"(?P<dollar>\$)",
    "UNIT": rf"(?P<unit>(?:{'|'.join(_UNITS)})s?)",
}
_NOUNS = {"kernel", "epilogue", "it"}
_TOKEN = re.compile(r"[=:+$]|(?<=\s)-(?=[\d$])|[^\s=:+$]+")
_FILE = re.compile(r"try\s+(?P<file>\S+\.\w+)", re.IGNORECASE)
_MODEL = re.compile(r"(?:use\s+)?model\s+(?P<name>\S+)", re.IGNORECASE)
_SIGNS = re.compile(r"[^\w\s]")


def forms() -> str:
    """The documented forms, one a line."""
    width = max(len(form) for form, _ in FORMS)
    return "\n".join(f"  {form.ljust(width)}  {meaning}" for form, meaning in FORMS)


def parse(text: str) -> Parsed:
    """A line of chat as a directive with its command, a question, or NotUnderstood; never raises."""
    line = " ".join(text[:LONGEST_LINE_CHARS].split())
    addressed = re.match(r"@([\w\-]+)[:,]?\s*(.*)$", line)
    to = _EXPERTS.get(addressed[1].lower(), "") if addressed else ""
    if addressed and not to:
        if addressed[1].lower() not in _expert_names():
            return NotUnderstood(Directive(0, "all", text.strip()), _no_expert(addressed[1]), is_plain=True)
        to = addressed[1].lower()
    body = (addressed[2] if addressed else line).rstrip(".!?").strip()
    body, island = _island(body)
    free = Directive(0, to or "all", text.strip(), {}, island)
    if not body:
        return NotUnderstood(free, "The line says nothing.")
    said = _tokens(body)
    if found := _match(_QUESTIONS, said):
        return RunQuestion(*(str(found.get(slot, "")) for slot in ("verb", "candidate", "other", "about")))
    if not addressed and (found := _match_order(body, said)):
        return replace(free, to="run", command=found)
    if not addressed and (found := _match(_RUN, said)):
        return replace(free, to="run", command=found)
    if found := _match(_STEERING, said):
        return replace(free, command=found)
    return NotUnderstood(free, f"I do not understand {body!r}.{_missing(said)}")


def _match_order(body: str, said: str) -> dict[str, Choice] | None:
    """The command of an order about candidates and islands; files and models keep their spelling."""
    if found := _FILE.fullmatch(body):
        return {"verb": "try", "file": found["file"]}
    if found := _MODEL.fullmatch(body):
        return {"verb": "model", "name": found["name"]}
    return _match(_ORDERS, said)


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
    """The acknowledgement of a command, one sentence."""
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
    """Who is meant, in words."""
    return "every expert" if directive.to in ("", "all") else f"the {directive.to} expert"


def words(text: str) -> tuple[str, ...]:
    """The words of a line that are not the language's own: what a user may have meant as names."""
    found = _SIGNS.sub(" ", text[:LONGEST_LINE_CHARS].lower()).split()
    return tuple(word for word in dict.fromkeys(found) if word not in _own_words() and not word.isdigit())


def _expert_names() -> frozenset[str]:
    from foundry.agents.expert import experts  # imports every expert: only for a name that is not one of the four

    return frozenset(experts())


def _no_expert(name: str) -> str:
    known = ", ".join(f"@{expert}" for expert in sorted(_expert_names()))
    return f"There is no expert named {name!r}; there are {known}, and @all speaks to each of them."


def _island(body: str) -> tuple[str, int | None]:
    found = re.search(r"\s*\b(?:(?:on|in|at|of)\s+)?island\s+(\d+)\b", body, re.IGNORECASE)
    if not found:
        return body, None
    return (body[: found.start()] + body[found.end() :]).strip(), int(found[1])


def _tokens(body: str) -> str:
    """Words, numbers and signs in lower case, a space after each; `128 x 256` is one of them."""
    tokens = " ".join(_TOKEN.findall(body.lower()))
    return re.sub(r"(?<!\S)(\d+) ?x ?(\d+)(?!\S)", r"\1x\2", tokens) + " "


@cache
def _own_words() -> frozenset[str]:
    """What a form says literally: never a name, but for the nouns that stand for values and kernels too."""
    rows = [row for form in (*_QUESTIONS, *_RUN, *_STEERING) for row in form.rows]
    return frozenset(word for row in rows for word in re.findall(r"(?<![\w'])[a-z]+(?![\w'])", row)) - _NOUNS


@cache
def _pattern(row: str) -> re.Pattern[str]:
    """A form's row as a pattern of whole tokens."""
    own = "|".join(sorted(_own_words()))
    name = rf"(?!(?:{own}|c\d+) )[a-z_][\w.\-]*"
    parts = []
    for element in re.findall(r"\[|\]\*?|[^\s\[\]]+", row):
        if element == "[":
            parts.append("(?:")
        elif element.startswith("]"):
            parts.append(f"){element[1:] or '?'}")
        elif element == "...":
            parts.append(r"(?:\S+ )*?")
        else:
            either = [
                _SLOTS[one].replace("{name}", name) if one in _SLOTS else re.escape(one) for one in element.split("|")
            ]
            parts.append(f"(?:{'|'.join(either)}) ")
    return re.compile("".join(parts))


def _match(table: tuple[_Form, ...], said: str) -> dict[str, Choice] | None:
    """The command of the first form that the whole line fits."""
    for form in table:
        for row in form.rows:
            if found := _pattern(row).fullmatch(said):
                return _command(form.verb, {slot: text for slot, text in found.groupdict().items() if text})
    return None


def _command(verb: str, slots: Mapping[str, str]) -> dict[str, Choice]:
    command: dict[str, Choice] = {"verb": verb}
    if name := slots.get("name") or slots.get("names", "").removesuffix("s"):
        command["name"] = name
    if "first" in slots:
        pair = (int(slots["first"]), int(slots["second"]))
        command |= {"value": pair[0], "value2": pair[1]} if verb == "set" else {"value": f"{pair[0]}x{pair[1]}"}
    elif value := slots.get("value") or slots.get("word"):
        command["value"] = int(value) if value.isdigit() else value
    if "amount" in slots:
        unit = slots.get("unit", "dollars" if "dollar" in slots else "evaluations")
        amount = ("-" if "less" in slots else "") + slots["amount"]
        command |= {
            "amount": int(amount) if amount.lstrip("-").isdigit() else amount,
            "unit": _UNITS[unit.removesuffix("s")],
        }
    if "directive" in slots:
        command["directive"] = int(slots["directive"])
    if "place" in slots:
        command["about"] = slots["place"]
    return command | {slot: slots[slot] for slot in ("kernel", "candidate", "other", "about", "role") if slot in slots}


def _missing(said: str) -> str:
    """What a line lacks that begins like a form, "" when it begins like none."""
    first = said.split()[0]
    if re.fullmatch(r"c\d+", first):
        return f" Ask `why {first}` about a candidate."
    for form in _STEERING:
        starts = {word for row in form.rows for word in row.strip("[").replace("]", " ").split()[0].split("|")}
        if form.needs and first in starts:
            return " " + form.needs.format(first)
    return ""
