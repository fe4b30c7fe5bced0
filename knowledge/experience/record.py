"""One lesson of one evaluation: what was tried on which graph and device, and what it brought."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.device import TargetName
from foundry.knowledge.merit import HALF_WIDTH_IN_DEVIATIONS

SEED = "seed"  # filed in place of a move: a first candidate, or the winner of a run
WHOLE_KERNEL = "source"  # a model wrote the file
NO_MOVES = frozenset({SEED, WHOLE_KERNEL})
FAILED_LIFT = 0.8  # a step whose child failed counts as a 20 % loss
NAMED = 3  # moves that a credit names as inseparable from its own


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
class Credit:
    """What a move is thought to bring by itself: the logarithm of a factor, normal, with its deviation. It is fitted to
    what whole steps brought (credit.py)."""

    move: str
    log_effect: float
    deviation: float
    steps: int  # that made it and were read
    here: int  # of them on this graph
    alone: int  # of them made nothing else
    wins: int  # of them were faster than what they began from
    inseparable: tuple[str, ...] = ()  # the moves that each of them made as well
    records: tuple[str, ...] = ()  # ids of a few, this graph's first

    @property
    def effect(self) -> float:
        """The most likely factor of the speed, near 1 while little is known."""
        return math.exp(self.log_effect)

    @property
    def low(self) -> float:
        """Lower end of the factor's 95 % interval."""
        return math.exp(self.log_effect - HALF_WIDTH_IN_DEVIATIONS * self.deviation)

    @property
    def high(self) -> float:
        """Upper end of the factor's 95 % interval."""
        return math.exp(self.log_effect + HALF_WIDTH_IN_DEVIATIONS * self.deviation)

    @property
    def words(self) -> str:
        """`1.12x [0.98, 1.28] by 5 steps, 2 of this graph, 3 faster; never made without gemm:set:stages=3`."""
        count = f"{self.steps} step{'s' if self.steps != 1 else ''}"
        here = f", {self.here} of this graph" if self.here else " elsewhere"
        here = "" if self.here == self.steps else here
        more = f" and {len(self.inseparable) - NAMED} more" if len(self.inseparable) > NAMED else ""
        tied = f"; never made without {', '.join(self.inseparable[:NAMED])}{more}" if self.inseparable else ""
        return f"{self.effect:.2f}x [{self.low:.2f}, {self.high:.2f}] by {count}{here}, {self.wins} faster{tied}"


@dataclass(frozen=True)
class ExperienceRecord:
    """One move of one step. `id` is a hash of run, step and move, so that a node run twice records once."""

    id: str
    run: str
    step: str  # "i0g4"
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
    kernels: tuple[KernelChoices, ...] = ()  # of the child, named by position as in the recipe
    together: Mapping[str, int] = field(default_factory=dict)  # every move of the step -> how often
    log_deviation: float = 0.0  # of the logarithm of the step's lift, by the timings
    credit: Credit | None = None  # what the move was credited with when the step was booked

    @property
    def lift(self) -> float | None:
        """Child over parent speedup of the whole step, None when either is unknown."""
        if self.parent_speedup is None or self.child_speedup is None:
            return None
        return self.child_speedup / self.parent_speedup

    @property
    def log_lift(self) -> float | None:
        """The logarithm of `lift`, a failed child counted as FAILED_LIFT; None for what is no move, and where the
        parent had failed already."""
        if self.move in NO_MOVES or not self.parent_speedup or self.outcome == "unproven":
            return None
        if self.outcome != "correct":
            return math.log(FAILED_LIFT)
        return math.log(self.lift) if self.lift else None


@dataclass(frozen=True)
class Known:
    """A configuration whose time is known, or that it fails. `run` names what it was measured beside, "" this run
    itself; `graph` is "" for this graph, `site` for this size on this device. One that is `pending` is being
    measured."""

    run: str
    structure: str
    kernels: tuple[KernelChoices, ...]
    log_speedup: float
    deviation: float
    graph: str = ""
    site: str = ""
    failed: bool = False
    pending: bool = False


@dataclass(frozen=True)
class Query:
    """What a recall asks for: exact keys first, similarity second. `run`: the one that asks; its own steps it knows."""

    graph_signature: str
    op_kinds: tuple[str, ...]
    shape_class: str
    device: str
    target: TargetName
    limiter: str = ""
    text: str = ""
    run: str = ""


@dataclass(frozen=True)
class Hit:
    """A recalled record and how near it is: 1.0 same graph, shape class and device; falls with each difference."""

    record: ExperienceRecord
    nearness: float
    why: str  # "same graph, other size", "similar operators", ...
