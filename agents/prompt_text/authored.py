"""An author's kernel as a model sees it: the head and the code of an answer that would write it again."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from foundry.knowledge.candidate import AuthoredKernel, AuthoredLaunch, Choice, Recipe
from foundry.knowledge.compiler.authored.planning import NAME
from foundry.knowledge.targets import find_target


def authored_words(recipe: Recipe) -> str:
    """The recipe's authored kernel as an answer gives it: a JSON fence (launches, tunables with the values chosen now
    as defaults, constraints, scratch) and a code fence. The recipe must have one."""
    kernel = recipe.authored
    assert kernel is not None
    head = json.dumps(head_of(kernel, recipe.choices.get(NAME, {})))
    return f"```json\n{head}\n```\n```{find_target(recipe.target).fence}\n{kernel.code.rstrip()}\n```"


def head_of(kernel: AuthoredKernel, choices: dict[str, Choice]) -> dict[str, Any]:
    """An answer's JSON about a kernel beside its code; the values that are chosen now are the tunables' defaults."""
    head: dict[str, Any] = {"launches": [_plain(launch) for launch in kernel.launches]}
    if kernel.tunables:
        head["tunables"] = {
            item.name: {"values": list(item.values), "default": choices.get(item.name, item.default)}
            | ({"meaning": item.meaning} if item.meaning else {})
            for item in kernel.tunables
        }
    if kernel.constraints:
        head["constraints"] = list(kernel.constraints)
    if kernel.scratch:
        head["scratch"] = {item.name: _without_defaults(asdict(item), "name") for item in kernel.scratch}
    return head


def _plain(launch: AuthoredLaunch) -> dict[str, Any]:
    """A launch's fields that differ from their defaults; its function is called "kernel"."""
    fields = {"kernel": launch.function, **asdict(launch)}
    return _without_defaults(fields, "function")


def _without_defaults(fields: dict[str, Any], *dropped: str) -> dict[str, Any]:
    """The fields without the dropped ones and without those that are (), False or "0"."""
    kept = {name: value for name, value in fields.items() if name not in dropped}
    return {name: value for name, value in kept.items() if value not in ((), False, "0")}
