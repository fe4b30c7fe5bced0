"""One lesson of one evaluation: what was tried on which graph and device, and what it brought."""

from __future__ import annotations

from dataclasses import dataclass

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.device import TargetName


@dataclass(frozen=True)
class ExperienceRecord:
    """`id` is a hash of run, island and step, so that a node run twice records once."""

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
    move: str  # Move.key, "seed", or "source" for a model's own kernel
    outcome: str  # Outcome of the child
    parent_speedup: float | None
    child_speedup: float | None
    child_ci95: tuple[float, float] | None
    is_run_best: bool = False  # the recipe that won its run: recalled as a seed
    recipe: Recipe | None = None  # with kernel names replaced by position ("#0") so that it fits other graphs
    source_digest: str = ""
    receipt: str = ""
    lineage: tuple[str, ...] = ()
    text: str = ""  # a sentence a human can read

    @property
    def lift(self) -> float | None:
        """Child over parent speedup, None when either is unknown."""
        if self.parent_speedup is None or self.child_speedup is None:
            return None
        return self.child_speedup / self.parent_speedup


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
    """What a move brought over the recalled records: reinforced by wins, decayed by failures."""

    move: str
    tries: int
    wins: int
    lift: float  # geometric mean of child/parent, failures counted as 0.8, weighted by nearness
    records: tuple[str, ...]  # ids
