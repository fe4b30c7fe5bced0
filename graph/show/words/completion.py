"""Completes a line to a run: commands, experts, and the run's own names for tunables, kernels, candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foundry.agents.directives import verbs

ROLES = ("fusion", "memory", "parameters", "algorithm")


@dataclass(frozen=True)
class Names:
    """The names of a run that a line can be completed with; empty until they are read."""

    tunables: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    rewrites: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    directives: tuple[str, ...] = ()


def complete(text: str, names: Names, experts: Sequence[str]) -> list[str]:
    """The completions of the last word of `text`, in alphabetical order."""
    before, _, word = text.rpartition(" ")
    said = before.split()
    return sorted({name for name in _candidates_for(said, names, experts) if name.startswith(word)}, key=_by_number)


def _by_number(name: str) -> tuple[str, int]:
    """c9 before c10."""
    letters = name.rstrip("0123456789")
    digits = name[len(letters) :]
    return letters, int(digits) if digits else -1


def _candidates_for(said: list[str], names: Names, experts: Sequence[str]) -> Sequence[str]:
    """The words that may follow those said so far, by the verb: candidates, directives, values, rewrites, kernels or
    tunables."""
    at = [f"@{expert}" for expert in (*experts, "all")]
    if not said:
        return [*verbs(to_experts=False), "exit", *at]
    verb = said[1] if said[0].startswith("@") and len(said) > 1 else said[0]
    if verb in ("why", "show", "diff", "freeze", "thaw", "start"):
        return names.candidates if verb != "start" or "from" in said else ["from"]
    if verb == "withdraw":
        return names.directives
    if verb in ("add", "role"):
        return ["island", *ROLES]
    if verb in ("keep", "fuse", "split"):
        return names.values
    if verb in ("apply", "drop"):
        return names.rewrites
    if "in" in said:
        return names.kernels
    if verb in ("pause", "resume", "stop"):
        return ["island"]
    if verb.startswith("@"):
        return [*verbs(to_experts=True), *names.tunables]
    return [*names.tunables, "in", "on", "island"]
