"""One lesson of one evaluation: what was tried on which graph and device, and what it brought."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.device import TargetName

SEED = "seed"  # filed in place of a move: a first candidate, or the winner of a run
WHOLE_KERNEL = "source"  # a model wrote the file
NO_MOVES = frozenset({SEED, WHOLE_KERNEL})
FAILED_LIFT = 0.8  # a step whose child failed counts as a 20 % loss


@dataclass(frozen=True)
class KernelChoices:
    """A kernel of a measured configuration: what it is printed with. `place` names the work that it does within its
    graph, `share` is its part of the bytes that all of them move."""

    name: str
    template: str
    place: str
    share: float
    choices: Mapping[str, Choice]


@dataclass(frozen=True)
class ExperienceRecord:
    """One move of one step. `id` is a hash of run, step and move, so that a node run twice records once."""

    id: str
    run: str
    created: str  # ISO time
    task: str
    graph_signature: str  # structure without sizes
    op_kinds: tuple[str, ...]  # sorted, unique
    shape_class: str  # e.g. "2d:n=2^22:rows=2^12"
    device: str  # Device.key
    target: TargetName
    limiter: str  # diagnosis of the parent: limiter or failure
    evidence: str
    move: str  # the key of one move, "seed", or "source" for a model's own kernel
    outcome: str  # Outcome of the child
    parent_speedup: float | None  # by all its timings
    child_speedup: float | None  # by all its timings
    child_ci95: tuple[float, float] | None
    is_run_best: bool = False  # the recipe that won its run: recalled as a seed
    recipe: Recipe | None = None  # with kernel names replaced by position ("#0") so that it fits other graphs
    source_digest: str = ""
    receipt: str = ""
    lineage: tuple[str, ...] = ()
    text: str = ""  # a sentence a human can read
    share: float = 1.0  # of the step's effect that is credited to this move
    kernels: tuple[KernelChoices, ...] = ()  # of the child, named by position as in the recipe

    @property
    def lift(self) -> float | None:
        """What the move is credited with: its share of child over parent speedup, None when either is unknown."""
        if self.parent_speedup is None or self.child_speedup is None:
            return None
        return float((self.child_speedup / self.parent_speedup) ** self.share)

    @property
    def log_lift(self) -> float | None:
        """The logarithm of `lift`, a failed child counted as FAILED_LIFT; None for what is no move, and where the
        parent had failed already."""
        if self.move in NO_MOVES or not self.parent_speedup or self.outcome == "unproven":
            return None
        if self.outcome != "correct":
            return self.share * math.log(FAILED_LIFT)
        return math.log(self.lift) if self.lift else None


@dataclass(frozen=True)
class Known:
    """A configuration whose time is known, or that it fails. `run` names what it was measured beside, "" this run
    itself; `nearness` is 1 for this graph, less for others. One that is `pending` is being measured."""

    run: str
    structure: str
    kernels: tuple[KernelChoices, ...]
    log_speedup: float
    deviation: float
    nearness: float = 1.0
    failed: bool = False
    pending: bool = False


@dataclass(frozen=True)
class Query:
    """What a recall asks for: exact keys first, similarity second."""

    graph_signature: str
    op_kinds: tuple[str, ...]
    shape_class: str
    device: str
    target: TargetName
    limiter: str = ""
    text: str = ""


@dataclass(frozen=True)
class Hit:
    """A recalled record and how near it is: 1.0 same graph, shape class and device; falls with each difference."""

    record: ExperienceRecord
    nearness: float
    why: str  # "same graph, other size", "similar operators", ...


@dataclass(frozen=True)
class MoveLift:
    """What a move brought over every record near enough: reinforced by wins, decayed by failures."""

    move: str
    tries: int
    wins: int
    lift: float  # geometric mean of what it is credited with, failures counted as FAILED_LIFT, weighted by nearness
    records: tuple[str, ...]  # ids of the nearest few
    weight: float  # the sum of the records' nearness

    @property
    def confidence(self) -> float:
        """How reliable the lift is, from 0 to 1. It grows with the number of records and with their nearness."""
        return self.weight / (self.weight + 1.0)
