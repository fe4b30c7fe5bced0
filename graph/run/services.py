"""Services that the nodes work with: one bundle per run, handed to every node as LangGraph's runtime context."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from foundry.agents.models.models import PLAYBOOK, Models, models_for
from foundry.graph.run.budget import Flight, Ledger
from foundry.graph.run.events import EventLog
from foundry.graph.run.journal import Journal
from foundry.graph.run.measurements import Measurements
from foundry.graph.run.request import Effort, SolveRequest
from foundry.graph.run.run_directory import MIXED, STAGES, RunDirectory
from foundry.knowledge.candidate import NOWHERE, Candidate, Evaluation, Recipe, Stage, Unrounded
from foundry.knowledge.codec import encode
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.device import Device
from foundry.knowledge.errors import LeavesToTorch, UsageError
from foundry.knowledge.experience.record import Credit, ExperienceRecord, Hit, Known, Query
from foundry.knowledge.merit import Estimate, estimate_of
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.task import Task
from foundry.knowledge.thought import Directive, Move

if TYPE_CHECKING:
    from foundry.agents.brain import Brain
    from foundry.agents.brief import Brief
    from foundry.knowledge.experience.store import ExperienceStore


class Library(Protocol):
    """The kernel compiler as the search sees it."""

    def seeds(self, graph: OpGraph, device: Device, unrounded: Unrounded = NOWHERE) -> tuple[Recipe, ...]:
        """First recipes, the safest first. `unrounded`: where PyTorch is more accurate than TF32.

        Raises CannotLower."""
        ...

    def lower(self, graphs: Sequence[OpGraph], recipe: Recipe, *, task_source: str, device: Device) -> Lowered:
        """The candidate file of a recipe. Raises CannotLower."""
        ...

    def moves(self, lowered: Lowered) -> tuple[Move, ...]:
        """All neighbours of a candidate."""
        ...

    def apply(self, recipe: Recipe, move: Move) -> Recipe:
        """The neighbour that a move leads to."""
        ...


class KernelLibrary:
    """The kernel compiler of this package, imported when it is first used."""

    def seeds(self, graph: OpGraph, device: Device, unrounded: Unrounded = NOWHERE) -> tuple[Recipe, ...]:
        """The compiler's first recipes for the graph, the safest first. Raises CannotLower."""
        from foundry.knowledge.compiler.lower import seeds

        return tuple(seeds(graph, device, unrounded))

    def lower(self, graphs: Sequence[OpGraph], recipe: Recipe, *, task_source: str, device: Device) -> Lowered:
        """The candidate file of a recipe. Raises CannotLower."""
        from foundry.knowledge.compiler.lower import lower

        return lower(graphs, recipe, task_source=task_source, device=device)

    def moves(self, lowered: Lowered) -> tuple[Move, ...]:
        """All neighbours of a candidate."""
        from foundry.knowledge.compiler.moves import moves

        return moves(lowered)

    def apply(self, recipe: Recipe, move: Move) -> Recipe:
        """The recipe that a move leads to."""
        from foundry.knowledge.compiler.moves import apply

        return apply(recipe, move)


@dataclass(frozen=True)
class Recalled:
    """The store's answer, as one record for the journal."""

    hits: tuple[Hit, ...] = ()
    credits: tuple[Credit, ...] = ()
    known: tuple[Known, ...] = ()


@dataclass
class Services:
    """Everything a node may touch. `recorded` is the run that a replay answers from."""

    request: SolveRequest
    run: RunDirectory
    log: EventLog
    journal: Journal
    ledger: Ledger
    task: Task
    device: Device
    measure: Measurements
    brain: Brain
    open_brain: Callable[[SolveRequest], Brain]  # makes the brain of a request
    library: Library
    store: ExperienceStore | None
    write_receipt: Callable[[Services, Evaluation], None]
    recorded: RunDirectory | None = None
    flight: Flight = field(default_factory=Flight)
    briefs: dict[str, Brief] = field(default_factory=dict)  # each island's latest, by its step
    known: dict[str, Known | None] = field(
        default_factory=dict
    )  # candidate and stage: records of earlier runs, for the estimates
    estimates: dict[str, Estimate | None] = field(default_factory=dict)  # candidate and stage: its estimate
    others: tuple[Known, ...] | None = None  # what earlier runs measured of kernels like these, once asked
    _lowered: dict[str, Lowered] = field(default_factory=dict)

    def refuse_model(self) -> None:
        """Lets the playbook think from now on, also if the run is resumed: the user does not want the model after
        all."""
        self.request = replace(self.request, models=Models())
        self.brain = self.open_brain(self.request)
        self.run.set("request", encode(self.request))
        self.run.set("brain", PLAYBOOK)

    def use_models(self, name: str) -> None:
        """Lets the model `name`, or the playbook, think from now on, also if the run is resumed. Notes it in the
        trace."""
        request = replace(self.request, models=models_for(self.request.models, name))
        if request == self.request:
            return
        self.brain = self.open_brain(request)
        self.request = request
        self.run.set("request", encode(request))
        self.run.set("brain", request.models.title)
        self.run.set(MIXED, "yes")
        self.log.note("note", "brain", text=f"{request.models.title} thinks from here on")

    @property
    def effort(self) -> Effort:
        """The settings of the request's effort."""
        return self.request.plan

    def stream(self, step: str) -> random.Random:
        """Random numbers for one step: the same for a seed, whatever the other islands do."""
        return random.Random(f"{self.request.seed}:{step}")

    async def graphs(self) -> list[OpGraph]:
        """The captured graphs, one a shape; empty when the task could not be captured."""
        return (await self.measure.intake()).graphs

    async def lower(self, recipe: Recipe) -> Lowered:
        """The candidate of a recipe, cached. Raises CannotLower."""
        known = self._lowered.get(recipe.digest)
        if known is None:
            graphs = await self.graphs()
            known = self.library.lower(graphs, recipe, task_source=self.task.text, device=self.device)
            self._lowered[recipe.digest] = known
            self._lowered[known.recipe.digest] = known
        return known

    async def lower_to_try(self, recipe: Recipe) -> Lowered:
        """The candidate of a recipe that is to be evaluated. Raises CannotLower.

        Raises LeavesToTorch if it would leave more of the work to PyTorch than the policy allows.
        """
        from foundry.tools.audit.acts.provenance import refused_plan

        lowered, graphs = await self.lower(recipe), await self.graphs()
        if refused := refused_plan(lowered.left, graphs[0], self.task.options.policy):
            raise LeavesToTorch(refused)
        return lowered

    def evaluation(self, candidate: str, stage: Stage | None = None) -> Evaluation:
        """A candidate's record; a replay finds those that it has not reached itself in the recorded run."""
        try:
            return self.run.evaluation(candidate, stage)
        except UsageError:
            if self.recorded is None:
                raise
            return self.recorded.evaluation(candidate, stage)

    def latest(self, candidate: str) -> Evaluation:
        """A candidate's latest record of the search, before any proof at the end."""
        return self.records(candidate, "full")[-1]

    def records(self, candidate: str, up_to: Stage | None = None) -> list[Evaluation]:
        """A candidate's records up to a stage, the screen first; a replay's as `evaluation` finds them."""
        stages = STAGES[: STAGES.index(up_to) + 1] if up_to else STAGES
        found = self.run.records(candidate, stages)
        theirs = self.recorded.records(candidate, stages) if self.recorded else []
        return theirs if len(theirs) > len(found) else found

    def estimate(self, candidate: str, up_to: Stage) -> Estimate | None:
        """A candidate's estimated speedup by its records up to a stage; None unless they accept it. Cached."""
        key = f"{candidate}/{up_to}"
        if key not in self.estimates:
            self.estimates[key] = estimate_of(self.records(candidate, up_to))
        return self.estimates[key]

    def candidate(self, name: str) -> Candidate:
        """A candidate that this run has decided on; raises UsageError if there is none."""
        decision = self.run.decision(name)
        if decision is None:
            raise UsageError(f"run {self.run.id} has no candidate {name}")
        return decision.candidate

    def directives(self, after: int = 0) -> list[Directive]:
        """The users' directives, from the inbox of this run or of the replayed one."""
        return (self.recorded or self.run).inbox.read(after)

    def tried(self, mark: int) -> frozenset[str]:
        """Digests of recipes and texts that had been evaluated when the mark was taken."""
        return (self.recorded or self.run).tried(mark)[1]

    def text(self, evaluation: Evaluation) -> str:
        """The candidate's file."""
        return self.read_text(evaluation.candidate.source)

    def read_text(self, digest: str) -> str:
        """A text of this run or of the replayed one, by its sha256."""
        try:
            return self.run.text(digest)
        except UsageError:
            if self.recorded is None:
                raise
            return self.recorded.text(digest)

    def best(self) -> Evaluation | None:
        """The candidate with the highest merit so far, its record at its highest stage; None if none is accepted."""
        ranked = self.run.ranking(1)
        return self.run.evaluation(ranked[0]) if ranked else None

    async def recall(self, key: str, query: Query, k: int = 8) -> Recalled:
        """Hits of earlier runs and credits for a query, asked once per key and noted in the trace."""

        async def ask() -> Recalled:
            """Asks the store in a thread; empty without a store."""
            store = self.store
            if store is None:
                return Recalled()

            def look() -> Recalled:
                """Hits and credits of other runs for the query."""
                hits = store.recall(replace(query, run=self.run.id), k)
                return Recalled(tuple(hits), tuple(store.credits(query)))

            found = await asyncio.to_thread(look)
            self.log.note(
                "retrieval",
                "recall",
                limiter=query.limiter,
                shown=[{"id": hit.record.id, "nearness": round(hit.nearness, 3), "why": hit.why} for hit in found.hits],
                lifts={credit.move: round(credit.effect, 3) for credit in found.credits[:8]},
            )
            return found

        return await self.journal.record(key, "outside", Recalled, ask)

    async def recall_known(self, query: Query, find_templates: Callable[[], Awaitable[Collection[str]]]) -> Recalled:
        """Earlier runs' measurements of kernels of these templates, asked once in a run."""

        async def ask() -> Recalled:
            """Asks the store in a thread; empty without a store."""
            store = self.store
            if store is None:
                return Recalled()
            found = await asyncio.to_thread(store.known, query, await find_templates())
            self.log.note("retrieval", "known", configurations=len(found), runs=len({item.run for item in found}))
            return Recalled(known=tuple(found))

        return await self.journal.record("recall/known", "outside", Recalled, ask)

    async def learn(self, records: Sequence[ExperienceRecord]) -> tuple[Credit, ...]:
        """Adds lessons to the shared store and returns the credits of their moves. A replay teaches nothing."""
        store = self.store
        if store is None or self.recorded is not None:
            return ()

        def book() -> tuple[Credit, ...]:
            """Adds the records and reads the credits that follow."""
            store.add(records)
            return tuple(store.booked([record.id for record in records]))

        return await asyncio.to_thread(book)
