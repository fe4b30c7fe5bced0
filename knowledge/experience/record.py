"""One lesson of one evaluation: the move, the graph and the device it was tried on, and its effect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.device import TargetName
from foundry.knowledge.merit import HALF_WIDTH_IN_DEVIATIONS
from foundry.knowledge.step_words import key_words

SEED = "seed"  # filed in place of a move: a first candidate, or the winner of a run
WHOLE_KERNEL = "source"  # filed in place of a move: a model wrote the file
NO_MOVES = frozenset({SEED, WHOLE_KERNEL})
FAILED_LIFT = 0.8  # speedup that a failed child counts as: a 20 % loss
NAMED = 3  # moves that a credit names as inseparable from its own


@dataclass(frozen=True)
class KernelChoices:
    """A kernel of a measured configuration with its printed choices.

    `place` names its work within the graph, `share` is its part of the bytes that all kernels move.
    """

    name: str
    template: str
    place: str
    share: float
    choices: Mapping[str, Choice]


@dataclass(frozen=True)
class Credit:
    """The estimated effect of a move by itself: the logarithm of a speedup factor, normal, with its standard deviation.

    It is fitted to the effects of whole steps (credit.py).
    """

    move: str
    log_effect: float
    deviation: float
    steps: int  # steps that made it and were read
    here: int  # those of them on this graph
    alone: int  # those of them that made nothing else
    wins: int  # those of them that were faster than their parent
    inseparable: tuple[str, ...] = ()  # moves that each of them made as well
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
        """The credit in words: `1.12x [0.98, 1.28] by 5 steps, 2 of this graph, 3 faster; never made without
        stages 3 in gemm kernels`."""
        count = f"{self.steps} step{'s' if self.steps != 1 else ''}"
        here = f", {self.here} of this graph" if self.here else " elsewhere"
        here = "" if self.here == self.steps else here
        more = f" and {len(self.inseparable) - NAMED} more" if len(self.inseparable) > NAMED else ""
        named = ", ".join(map(key_words, self.inseparable[:NAMED]))
        tied = f"; never made without {named}{more}" if self.inseparable else ""
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
    parent_speedup: float | None  # estimate from all its timings
    child_speedup: float | None  # estimate from all its timings
    child_ci95: tuple[float, float] | None
    is_run_best: bool = False  # the recipe that won its run: recalled as a seed
    recipe: Recipe | None = None  # kernel names replaced by position ("#0"), so that it fits other graphs
    source_digest: str = ""
    receipt: str = ""
    lineage: tuple[str, ...] = ()
    text: str = ""  # a sentence a human can read
    kernels: tuple[KernelChoices, ...] = ()  # kernels of the child, named by position as in the recipe
    together: Mapping[str, int] = field(default_factory=dict)  # every move of the step -> how often
    log_deviation: float = 0.0  # standard deviation of the logarithm of the step's lift, by the timings
    credit: Credit | None = None  # credit of the move at the time of recording

    @property
    def lift(self) -> float | None:
        """Child over parent speedup of the whole step; None if either is unknown."""
        if self.parent_speedup is None or self.child_speedup is None:
            return None
        return self.child_speedup / self.parent_speedup

    @property
    def log_lift(self) -> float | None:
        """Logarithm of `lift`, with a failed child counted as FAILED_LIFT.

        None for a record without a move, and if the parent had failed already.
        """
        if self.move in NO_MOVES or not self.parent_speedup or self.outcome == "unproven":
            return None
        if self.outcome != "correct":
            return math.log(FAILED_LIFT)
        return math.log(self.lift) if self.lift else None


@dataclass(frozen=True)
class Known:
    """A configuration with a known time, or known to fail.

    `run` names the run that measured it ("" for this run), `graph` is "" for this graph, `site` is "" for this size
    on this device. A `pending` one is being measured.
    """

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
    """A recall: exact keys first, similarity second. `run` is the asking run, whose own steps are left out."""

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
    """A recalled record and its nearness: 1.0 for the same graph, shape class and device; less for each difference."""

    record: ExperienceRecord
    nearness: float
    why: str  # "same graph, other size", "similar operators", ...
