"""Explains to a user why a directive cannot be followed, and what could be said instead.

A directive is compared with every candidate that the run knows. If one of them can follow it, it is worth trying.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from foundry.agents.directives import NotUnderstood, verbs, words
from foundry.agents.obedience import find_tunables, find_values, targets
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.thought import Directive

MOST_NAMES = 24


def explain(directive: Directive, candidates: Sequence[Lowered], graph: OpGraph | None) -> str:
    """Why no candidate of the run can follow a directive. "" if one can, if the directive is not about candidates, or
    if no candidate is known yet."""
    verb, name = directive.verb, str(directive.command.get("name", ""))
    if not candidates or directive.to == "run":
        return ""
    if verb in ("set", "avoid"):
        return _about_tunable(directive, name, candidates)
    if verb in ("keep", "split"):
        values = _each([*item.fused, *item.materialised] for item in candidates)
        return "" if find_values(values, name, graph) else _about_value(name, values, graph)
    if verb in ("apply", "drop"):
        rewrites = _each([*item.rewrites_applied, *item.rewrites_open] for item in candidates)
        return "" if any(name in item.lower() for item in rewrites) else _unknown("rewrite", "fits", name, rewrites)
    return ""


def stands_for(directive: Directive, candidates: Sequence[Lowered]) -> str:
    """A sentence that says which tunables a name was taken for, if no tunable has exactly this name; else ""."""
    if directive.verb not in ("set", "avoid"):
        return ""
    command = directive.command
    name, kernel = str(command["name"]), str(command.get("kernel", ""))
    found = _each([tunable.name for _, tunable in find_tunables(item, name, kernel)] for item in candidates)
    others = [tunable for tunable in found if name.rstrip("s") not in tunable.lower()]
    return f"Where no tunable is called {name}, it stands for {_some(others)}." if others else ""


def answer_misunderstood(said: NotUnderstood, candidates: Sequence[Lowered]) -> str:
    """The answer to a line outside the language, in one line: what is missing, or names near it and the verbs."""
    if said.is_plain:
        return said.reason
    near = nearest(words(said.directive.text), tunables(candidates))
    hint = f" Near it: {', '.join(near)}." if near else ""
    return f"{said.reason}{hint} A line begins with {', '.join(verbs())}; help shows how each is said."


def tunables(candidates: Sequence[Lowered]) -> list[str]:
    """Names of the tunables that the run's candidates have."""
    return _each([tunable.name for kernel in item.kernels for tunable in kernel.tunables] for item in candidates)


def nearest(said: Iterable[str], known: Sequence[str]) -> list[str]:
    """Known names that look like what was said, the nearest first."""
    by_lower = {name.lower(): name for name in known}
    found = [name for word in said for name in get_close_matches(word, by_lower, n=3)]
    return [by_lower[name] for name in dict.fromkeys(found)]


def _about_value(name: str, known: Sequence[str], graph: OpGraph | None) -> str:
    """Why a value can be neither kept nor split: these kernels leave no choice about it, or there is no such value."""
    results = [value.name for op in graph.ops for value in op.outputs] if graph else []
    if find_values(results, name, graph):
        return f"These kernels cannot keep or split {name}; they can keep or split {_some(known) or 'nothing'}."
    return _unknown("value", "can be kept or split", name, known)


def _about_tunable(directive: Directive, name: str, candidates: Sequence[Lowered]) -> str:
    """Why a directive about a tunable cannot be followed, with what is legal; "" if it can."""
    command = directive.command
    kernel = str(command.get("kernel", ""))
    summaries = [summary for item in candidates for summary in item.kernels]
    if kernel and all(kernel not in (summary.name.lower(), summary.template) for summary in summaries):
        return _unknown("kernel", "is in this run", kernel, _each([summary.name] for summary in summaries))
    found = [pair for item in candidates for pair in find_tunables(item, name, kernel)]
    if not found:
        return _unknown("tunable", "is in this run" + (f" in {kernel}" if kernel else ""), name, tunables(candidates))
    if command.get("verb") == "avoid" or any(
        value in tunable.values for item in candidates for _, tunable, value in targets(item, directive)
    ):
        return ""
    legal: dict[str, list[str]] = {}
    for summary, tunable in found:
        values = legal.setdefault(f"{summary.name}.{tunable.name}", [])
        values += [text for text in map(str, tunable.values) if text not in values]
    asked = f"{command['value']}x{command['value2']}" if "value2" in command else command.get("value")
    refusal = f"{asked} is not legal here; {'; '.join(f'{where}: {_some(values)}' for where, values in legal.items())}."
    return " ".join(filter(None, (stands_for(directive, candidates), refusal)))


def _each(rows: Iterable[Iterable[str]]) -> list[str]:
    """Every name of the rows once."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _unknown(what: str, holds: str, name: str, known: Sequence[str]) -> str:
    """The sentence that no such thing is known, with the known ones and those of similar names."""
    near = nearest([name], known)
    hint = f"; near it: {', '.join(near)}" if near else ""
    return f"No {what} called {name} {holds}; there are {_some(known) or 'none'}{hint}."


def _some(names: Sequence[str]) -> str:
    """At most MOST_NAMES of the names, separated by commas, and how many more there are."""
    more = f", and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
