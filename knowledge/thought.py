"""Records that the experts exchange: diagnoses, moves, proposals, directives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.limits import Limiter

# Name of a module in agents/experts: "tiling", "fusion", "diagnostician", "auditor"; a fifth is one more file.
ExpertName = str
Role = Literal["any", "fusion", "memory", "parameters", "algorithm"]  # "any": without preference
Failure = Literal[
    "compile_error",
    "launch_failure",
    "crash",
    "timeout",
    "wrong_result",
    "inaccurate",
    "nondeterministic",
    "stale_weights",
    "cheating",
    "not_allowed",
    "not_judged",
]
Aspect = Literal["tile", "vector", "memory", "parallel", "algorithm", "fusion", "rewrite", "precision"]


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of a candidate: a failed one has a `failure`, a correct one a `limiter`; never both."""

    candidate: str
    failure: Failure | None
    limiter: Limiter | None
    evidence: str  # numbers, or the first error line
    action: str  # one recommended action
    kernel: str = ""  # the kernel concerned, if one dominates


@dataclass(frozen=True)
class Move:
    """One legal step from a candidate of the compiler to a neighbour.

    kind "set": kernel, name and value of a tunable; "split": materialise `name`; "fuse": stop materialising it;
    "rewrite"/"unwrite": apply or drop the exact rewrite `name`; "tune": values that the tuner will find.
    """

    kind: Literal["set", "split", "fuse", "rewrite", "unwrite", "tune"]
    aspect: Aspect
    name: str
    kernel: str = ""
    template: str = ""  # the kernel's template, e.g. "row", "gemm"
    value: Choice | None = None
    was: Choice | None = None
    reason: str = ""  # effect that a kernel engineer expects
    unit: str = ""  # what a number counts, as its tunable declares it

    @property
    def key(self) -> str:
        """Identity across tasks, under which experience is filed, e.g. `row:set:unroll=4`."""
        if self.kind == "set":
            return f"{self.template}:set:{self.name}={self.value}"
        return f"{self.kind}:{self.name if self.aspect == 'rewrite' else self.template or 'value'}"


@dataclass(frozen=True)
class Edit:
    """Replaces `old` by `new` at character `at` of the parent's file; if `at` is None, at its only occurrence."""

    old: str
    new: str
    at: int | None = None


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """The parent's file after the edits, each found in the file as it was before all of them.

    Raises ValueError if one does not fit or two overlap.
    """
    spans: list[tuple[int, int, str]] = []
    for number, edit in enumerate(edits, 1):
        count = text.count(edit.old) if edit.old else 0
        if edit.at is None and count != 1:
            raise ValueError(f"edit {number}: its old text occurs {count} times, not once")
        at = text.index(edit.old) if edit.at is None else edit.at
        if not text.startswith(edit.old, at):
            raise ValueError(f"edit {number}: its old text is not at character {at} of the parent's file")
        spans.append((at, at + len(edit.old), edit.new))
    spans.sort()
    if any(after[0] < before[1] for before, after in pairwise(spans)):
        raise ValueError("two edits change the same text")
    for start, end, new in reversed(spans):
        text = text[:start] + new + text[end:]
    return text


@dataclass(frozen=True)
class Proposal:
    """One step that an expert wants; exactly one of `recipe`, `edits`, `source` carries it."""

    id: str
    expert: ExpertName
    parent: str
    rationale: str
    expected: str  # expected effect, e.g. "one pass instead of two: -30 % bytes"
    moves: tuple[Move, ...] = ()
    recipe: Recipe | None = None
    edits: tuple[Edit, ...] = ()
    source: str = ""  # a whole kernel file's text
    cites: tuple[str, ...] = ()  # directives ("d3") and experience records ("x<id>") that it follows
    brain: str = "playbook"


@dataclass(frozen=True)
class Directive:
    """A user's word to an expert (or to all), read from the inbox when a step begins.

    `command["verb"]` is the form of the steering language that the line matched; a line outside it has no command,
    and only a chat model reads it. Verbs for experts: set (name, value, optionally value2, kernel), avoid (name,
    value), free (name), keep (name), split (name), apply (name), drop (name). For the run: pause, resume, stop,
    budget (amount, unit).
    """

    id: int  # 0 until it is posted
    to: str  # expert name, "all", or "run"
    text: str  # the text that the user typed
    command: dict[str, Choice] = field(default_factory=dict)
    island: int | None = None

    @property
    def verb(self) -> str:
        """The form of the steering language, "" for free text."""
        return str(self.command.get("verb", ""))
