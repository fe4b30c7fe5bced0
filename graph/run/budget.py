"""Budget of a run: the caps, the spending so far, what steps under way will need, and why an island should stop."""

from __future__ import annotations

import math
import time
import uuid
from dataclasses import dataclass

from foundry.agents.ledger import ModelCost, ModelLedger
from foundry.graph.run.database import Database
from foundry.graph.run.events import EventLog
from foundry.graph.run.inbox import sum_grants
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.knowledge.candidate import Evaluation
from foundry.knowledge.merit import estimate_of

FLOOR_REACHED = 0.97  # fraction of the roofline floor beyond which nothing is left to gain
TRIALS = 0.5  # share of a run's evaluations that experts may have tried by tools


@dataclass(frozen=True)
class Spent:
    """The spending of a run so far.

    `evaluations` also counts texts that experts had tried by tools; `minutes` only the time in which a process worked
    on it.
    """

    evaluations: int
    minutes: float
    tokens: int
    dollars: float


@dataclass(frozen=True)
class Allowed:
    """The caps in force, the user's later grants included; None is no cap."""

    evaluations: int
    minutes: float
    tokens: int | None
    dollars: float | None
    calls: int | None


class RunCalls:
    """Implements CallBook in the run's database.

    So the calls of a killed process, and users' questions in other processes, count against the run's caps.
    """

    def __init__(self, database: Database) -> None:
        """Books calls under an id of this process."""
        self._database = database
        self._owner = uuid.uuid4().hex

    def add(self, cost: ModelCost) -> int:
        """Books a call's cost for this process and returns the row's number."""
        return self._database.insert(
            "INSERT INTO calls (owner, at, prompt_tokens, answer_tokens, dollars) VALUES (?, ?, ?, ?, ?)",
            (self._owner, time.time(), cost.prompt_tokens, cost.answer_tokens, cost.dollars),
        )

    def settle(self, number: int, cost: ModelCost | None) -> None:
        """Sets a booked call's cost, or deletes the call if `cost` is None."""
        if cost is None:
            self._database.run("DELETE FROM calls WHERE id = ?", (number,))
            return
        self._database.run(
            "UPDATE calls SET prompt_tokens = ?, answer_tokens = ?, dollars = ? WHERE id = ?",
            (cost.prompt_tokens, cost.answer_tokens, cost.dollars, number),
        )

    def others(self) -> ModelCost:
        """The cost of all calls that other processes booked."""
        ((count, prompt, answer, dollars),) = self._database.run(
            "SELECT COUNT(*), TOTAL(prompt_tokens), TOTAL(answer_tokens), TOTAL(dollars) FROM calls WHERE owner != ?",
            (self._owner,),
        )
        return ModelCost(count, int(prompt), int(answer), dollars)


class Ledger:
    """Budget questions about a run. Reads the shared tables each time, so that islands, sessions and users' grants
    agree."""

    def __init__(self, request: SolveRequest, run: RunDirectory, log: EventLog) -> None:
        """Books the model's calls in the run's database and sets its caps."""
        self._request = request
        self._run = run
        self._log = log
        self._excused: dict[int, float] = {}
        self._waited_s = 0.0
        self.thinking = ModelLedger(book=RunCalls(run.database))
        self.refresh()

    def refresh(self) -> None:
        """Sets the model's caps anew: the request's and what the user granted since."""
        allowed = self.allowed()
        self.thinking.max_tokens, self.thinking.max_dollars = allowed.tokens, allowed.dollars
        self.thinking.max_calls = allowed.calls

    def excuse(self, island: int, seconds: float) -> None:
        """Subtracts `seconds` of an island's pause from the run's time. Islands pause together, so only the longest
        pause counts."""
        self._excused[island] = self._excused.get(island, 0.0) + seconds

    def excuse_waiting(self, seconds: float) -> None:
        """Subtracts the seconds that a person took to answer a question from the run's time."""
        self._waited_s += seconds

    def spent(self) -> Spent:
        """The run's spending so far; pauses and waits for a person's answer do not count as minutes."""
        minutes = (self._log.elapsed_s() - max(self._excused.values(), default=0.0) - self._waited_s) / 60
        thought = self.thinking.total
        return Spent(self._run.text_count(), minutes, thought.tokens, thought.dollars)

    def allowed(self) -> Allowed:
        """The request's caps plus what the user granted since."""
        directives = self._run.inbox.read()
        limits = self._request.limits
        tokens, dollars, calls = limits.tokens, limits.dollars, limits.calls
        return Allowed(
            self._request.max_evaluations + int(sum_grants(directives, "evaluations")),
            self._request.max_minutes + sum_grants(directives, "minutes"),
            None if tokens is None else tokens + int(sum_grants(directives, "tokens")),
            None if dollars is None else dollars + sum_grants(directives, "dollars"),
            None if calls is None else calls + int(sum_grants(directives, "calls")),
        )

    def why_exhausted(self, reserved: int = 0) -> str:
        """The cap on the search that is reached, in words; "" if none is.

        `reserved`: evaluations that steps under way will claim. The caps on tokens, dollars and calls stop the model
        but not the search: the playbook goes on at no cost.
        """
        spent, allowed = self.spent(), self.allowed()
        if spent.evaluations + reserved >= allowed.evaluations:
            return f"budget: {allowed.evaluations} evaluations{self._spent_on(spent.evaluations, reserved)}"
        if spent.minutes >= allowed.minutes:
            return f"budget: {allowed.minutes:.3g} minutes"
        return ""

    def _spent_on(self, spent: int, reserved: int) -> str:
        """Words in brackets that split the spent evaluations into candidates, tools' trials and reserved ones; "" if
        all are candidates."""
        tried = self._run.trial_count()
        parts = [f"{spent - tried} candidates"] * bool(tried or reserved)
        parts += [f"{tried} kernels that were only tried by tools"] * bool(tried)
        parts += [f"{reserved} kept for steps under way"] * bool(reserved)
        return f" ({', '.join(parts)})" if parts else ""

    def left_s(self) -> float:
        """Seconds that a model may take for an answer: infinite while the search has time, then the rest of the run's
        total time.

        Negative if that is over.
        """
        minutes, allowed = self.spent().minutes, self.allowed().minutes
        if minutes < allowed:
            return math.inf
        return 60.0 * (allowed + self._request.total_minutes - self._request.max_minutes - minutes)

    def why_no_trial(self, text: str, reserved: int) -> str:
        """The reason why an expert's tool may not work on a text, by its sha256; "" if it may.

        `reserved`: evaluations that steps under way will claim, its own among them.
        """
        if self._run.is_counted(text):
            return ""
        most = self.most_trials()
        if self._run.trial_count() >= most:
            return f"the experts' tools have used their part of the budget, {most} kernels"
        return self.why_exhausted(reserved)

    def most_trials(self) -> int:
        """Number of kernels that tools may work on without a proposal of them."""
        return int(TRIALS * self.allowed().evaluations)

    def why_no_claim(self, text: str) -> str:
        """The reason why a text, by its sha256, may not become a candidate; "" if it may. Texts that a tool worked on
        are paid for."""
        spent, allowed = self.spent().evaluations, self.allowed().evaluations
        is_paid = spent < allowed or self._run.is_counted(text)
        return "" if is_paid else f"budget: {allowed} evaluations"

    def why_satisfied(self, best: Evaluation | None) -> str:
        """The reason why the best candidate is good enough to end the search, in words; "" if it is not.

        Either its speedup's lower bound reaches the target, or its time is near the roofline floor.
        """
        if best is None or best.timing is None:
            return ""
        target = self._request.limits.target_speedup
        known = estimate_of(self._run.records(best.candidate.id))
        if target is not None and known is not None and known.low >= target:
            return f"target: at least {known.low:.2f}x"
        floor_ms = best.profile.allowed_floor_ms if best.profile is not None else 0.0
        share = floor_ms / best.timing.candidate_ms if best.timing.candidate_ms > 0 else 0.0
        if share >= FLOOR_REACHED and self._run.evaluation_count() >= self._request.plan.floor_trusted:
            return f"floor: {100 * share:.0f} % of the roofline floor"
        return ""


@dataclass(frozen=True)
class Underway:
    """A step from its beginning on; `parent` and `candidate` are "" until they are known."""

    step: str
    parent: str = ""
    candidate: str = ""


class Flight:
    """The step that each island is at. A process that resumes a run learns it as the islands go on."""

    def __init__(self) -> None:
        """Starts without steps under way."""
        self._steps: dict[int, Underway] = {}

    def note_step(self, island: int, step: str, parent: str = "", candidate: str = "") -> None:
        """Records that the island is at this step, in place of its step before."""
        self._steps[island] = Underway(step, parent, candidate)

    def note_end(self, island: int) -> None:
        """Records that the island has ended."""
        self._steps.pop(island, None)

    def reserved(self, but: int | None = None) -> int:
        """Number of evaluations that the steps under way may still claim, that of island `but` aside."""
        return sum(not item.candidate for island, item in self._steps.items() if island != but)

    def thinking(self, but: int) -> list[Underway]:
        """The steps of the other islands from which no candidate has come yet, in the order of the islands."""
        found = [item for island, item in sorted(self._steps.items()) if island != but]
        return [item for item in found if item.parent and not item.candidate]
