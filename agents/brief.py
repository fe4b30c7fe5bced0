"""What an expert is shown before it thinks: one frozen brief, the same for every brain."""

from __future__ import annotations

from dataclasses import dataclass

from foundry.knowledge.candidate import Baseline, Evaluation
from foundry.knowledge.device import Device
from foundry.knowledge.experience.record import Hit, MoveLift
from foundry.knowledge.library.lowered import Lowered
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.task import Task
from foundry.knowledge.thought import Diagnosis, Directive, Role


@dataclass(frozen=True)
class Brief:
    """`tried` holds digests of recipes and sources this run has evaluated; nothing is proposed twice."""

    task: Task
    graph: OpGraph | None  # of the file's own shapes; None when the task could not be captured
    device: Device
    baseline: Baseline
    role: Role
    island: int
    generation: int
    step: str  # "i2g5": names the proposal and seeds the random stream
    seed: int
    parent: Evaluation
    parent_text: str
    lowered: Lowered | None  # None when the parent is not a library candidate
    diagnosis: Diagnosis | None
    hits: tuple[Hit, ...] = ()
    lifts: tuple[MoveLift, ...] = ()
    directives: tuple[Directive, ...] = ()
    hints: tuple[str, ...] = ()  # archive gradients in words
    elites: tuple[Evaluation, ...] = ()  # of this island and migrants, best first: partners for crossover
    tried: frozenset[str] = frozenset()
    further_graphs: tuple[OpGraph, ...] = ()  # of the task's further shapes and dtypes

    @property
    def graphs(self) -> tuple[OpGraph, ...]:
        return () if self.graph is None else (self.graph, *self.further_graphs)
