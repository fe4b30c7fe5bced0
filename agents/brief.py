"""The brief: the facts that an expert gets before it proposes a step; frozen, and the same for every brain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from foundry.agents.obedience import Obedience, applies
from foundry.agents.prompt import PromptText
from foundry.agents.talk import Talk
from foundry.knowledge.candidate import Baseline, Evaluation, Rival
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.device import Device
from foundry.knowledge.experience.record import Credit, Hit, Known
from foundry.knowledge.opgraph import OperatorRun, OpGraph, Signature
from foundry.knowledge.task import Task
from foundry.knowledge.thought import Diagnosis, Directive, Proposal, Role


@dataclass(frozen=True)
class Attempt:
    """A step of this run: the candidate that it made, what was meant, and what came of it so far."""

    candidate: str
    proposal: Proposal
    records: tuple[Evaluation, ...]


@dataclass(frozen=True)
class Example:
    """Another kernel of this run, and why it is shown."""

    evaluation: Evaluation
    text: str
    why: str


@dataclass(frozen=True)
class Brief:
    """`tried` holds digests of recipes and sources this run has evaluated; nothing is proposed twice."""

    task: Task
    graph: OpGraph | None  # captured with the file's own shapes; None if the task could not be captured
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
    credits: tuple[Credit, ...] = ()
    directives: tuple[Directive, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)  # strategies' weights, by aspect and by key of a move
    notes: tuple[str, ...] = ()  # strategies' remarks in words
    stagnant_generations: int = 0  # without improvement, once the island counts as stagnating; else 0
    known: tuple[Known, ...] = ()  # what was measured, in this run and of kernels like these elsewhere
    elites: tuple[Evaluation, ...] = ()  # the island's best, and what strategies add: partners for crossover
    tried: frozenset[str] = frozenset()
    tune_s: float = 0.0  # what the tuner may take for a structure; 0: it is not asked
    further_graphs: tuple[OpGraph, ...] = ()  # captured with the task's further shapes and dtypes
    first: str = ""  # the file of c1 where the kernel compiler wrote it: shown at every step of the run
    compiled: Rival | None = None  # torch.compile, once it has been timed
    records: Mapping[str, tuple[Evaluation, ...]] = field(default_factory=dict)  # all of the candidates that are shown
    ran: tuple[OperatorRun, ...] = ()  # what PyTorch runs in the reference, where there is no graph
    seen: Signature | None = None  # the tensors of one call of the reference
    attempts: tuple[Attempt, ...] = ()  # the latest, those from this parent first
    examples: tuple[Example, ...] = ()  # the best kernel, and one of another kind
    budget: str = ""  # what the search has left, in words
    thinking: tuple[str, ...] = ()  # the parents of steps that others think about now
    others: tuple[str, ...] = ()  # who of them thinks about this parent, in words
    prompt: PromptText = field(default_factory=PromptText)  # prompt of the expert at work: as shipped, or a variant
    model: str = ""  # model that was chosen for this step among several of the expert
    tools: tuple[str, ...] = ()  # those that the expert at work may call; only a chat model does
    talk: Talk = field(default_factory=Talk)  # what it has asked and heard in this step

    @cached_property
    def obedience(self) -> Obedience | None:
        """The demands of the user's directives on the parent; None if it is not a library candidate."""
        if self.lowered is None:
            return None
        return Obedience(
            self.lowered, self.graph, tuple(item for item in self.directives if applies(item, self.island))
        )

    def known_of(self, evaluation: Evaluation) -> tuple[Evaluation, ...]:
        """All records of a candidate that is shown: its speed is told by all its timings."""
        return self.records.get(evaluation.candidate.id) or (evaluation,)

    @property
    def graphs(self) -> tuple[OpGraph, ...]:
        """The task's operator graph and the further ones; () if there is none."""
        return () if self.graph is None else (self.graph, *self.further_graphs)
