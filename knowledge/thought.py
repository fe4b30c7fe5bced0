"""What the experts exchange: diagnoses, moves, proposals, directives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from foundry.knowledge.candidate import Choice, Recipe

ExpertName = str  # of agents/*.py: "tiling", "fusion", "diagnostician", "auditor"; a fifth is one more file
Role = Literal["fusion", "memory", "parameters", "algorithm"]
Failure = Literal[
    "compile_error", "launch_failure", "crash", "timeout", "wrong_result", "inaccurate", "nondeterministic", "cheating"
]
Limiter = Literal[
    "memory_bandwidth",
    "memory_latency",
    "compute",
    "occupancy",
    "launch_overhead",
    "synchronisation",
    "instruction_mix",
]
Aspect = Literal["tile", "vector", "memory", "parallel", "algorithm", "fusion", "rewrite", "precision"]


@dataclass(frozen=True)
class Diagnosis:
    """Failed candidates have a `failure`, correct ones a `limiter`; never both."""

    candidate: str
    failure: Failure | None
    limiter: Limiter | None
    evidence: str  # numbers or the first error line
    action: str  # one recommended action
    kernel: str = ""  # the kernel it is about, when one dominates


@dataclass(frozen=True)
class Move:
    """One legal step from a library candidate to a neighbour.

    kind "set": kernel, name and value of a tunable; "split": materialise `name`; "fuse": stop materialising it;
    "rewrite"/"unwrite": apply or drop the exact rewrite `name`.
    """

    kind: Literal["set", "split", "fuse", "rewrite", "unwrite"]
    aspect: Aspect
    name: str
    kernel: str = ""
    template: str = ""  # the kernel's template, e.g. "row", "gemm"
    value: Choice | None = None
    was: Choice | None = None
    reason: str = ""  # what a kernel engineer expects of it

    @property
    def key(self) -> str:
        """Identity across tasks: what experience is keyed by, e.g. `row:set:unroll=4`."""
        if self.kind == "set":
            return f"{self.template}:set:{self.name}={self.value}"
        return f"{self.kind}:{self.name if self.aspect == 'rewrite' else self.template or 'value'}"


@dataclass(frozen=True)
class Edit:
    """Replace `old` (which must occur exactly once in the parent's file) by `new`."""

    old: str
    new: str


@dataclass(frozen=True)
class Proposal:
    """One step an expert wants; exactly one of `recipe`, `edits`, `source` carries it."""

    id: str
    expert: ExpertName
    parent: str
    rationale: str
    expected: str  # expected effect, e.g. "one pass instead of two: -30 % bytes"
    moves: tuple[Move, ...] = ()
    recipe: Recipe | None = None
    edits: tuple[Edit, ...] = ()
    source: str = ""  # a whole kernel file's text
    cites: tuple[str, ...] = ()  # "d3" directives and "x<id>" experience records it follows
    brain: str = "playbook"


@dataclass(frozen=True)
class Directive:
    """A user's word to an expert (or to all), read from the inbox at a safe boundary."""

    id: int
    to: str  # expert name, "all", or "run" for pause and stop
    text: str
    command: dict[str, Choice] = field(default_factory=dict)  # parsed form when the small language matches
    island: int | None = None
