"""The data of the live view, built from the events of a run's log as they come."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from foundry.graph.run.budget import Allowed
from foundry.graph.run.events import Event
from foundry.graph.run.inbox import Acknowledgement
from foundry.graph.run.request import SolveRequest
from foundry.graph.show.effects import History
from foundry.knowledge.thought import Directive

DEVIATIONS = 1.96  # standard deviations between the middle of a 95 % interval and its end
RATE_S = 60.0  # evaluations of the last minute are the rate
_STEP = re.compile(r"i(\d+)g(\d+)$")
DOING = {
    "select": "chooses a parent",
    "diagnose": "diagnoses",
    "tools": "asks the tools",
    "write": "writes",
    "build": "builds",
    "verify": "checks",
    "auditor": "audits",
    "time": "times",
    "profile": "profiles",
    "prove": "proves",
    "learn": "records",
}


@dataclass
class StepScene:
    """A step under way: its generation, action, expert and candidate."""

    generation: int = 0
    doing: str = "starts"
    expert: str = ""
    candidate: str = ""


@dataclass
class IslandScene:
    """One island: its step under way, the last reason of an expert, and its best speedup."""

    number: int
    step: StepScene = field(default_factory=StepScene)
    reason: str = ""
    best: float | None = None
    tried: int = 0
    ended: str = ""


@dataclass(frozen=True)
class Standing:
    """A run's state, spending, budget and directives at one moment."""

    kept_state: str  # state of the run while no process works on it
    is_active: bool
    elapsed_s: float
    spent: int  # evaluations, as the budget counts them
    allowed: Allowed
    directives: tuple[Directive, ...] = ()
    taken: tuple[Acknowledgement, ...] = ()
    question: str = ""


@dataclass
class Scene:
    """Takes events one by one; a span comes when it opens and again when it closes."""

    request: SolveRequest
    phase: str = "starts"
    eager_ms: float | None = None
    best: tuple[str, float, tuple[float, float]] | None = None  # candidate, speedup, interval
    best_island: int | None = None
    sure: float = 0.0  # one deviation below the best's speedup: what candidates are compared by
    is_proving: bool = False  # the end has begun: only proofs count
    islands: dict[int, IslandScene] = field(default_factory=dict)
    curve: list[float] = field(default_factory=list)  # `sure` after each evaluation, 0.0 while nothing is correct
    times: list[float] = field(default_factory=list)  # when each evaluation ended, in seconds since the epoch
    known: set[str] = field(default_factory=set)  # candidates that were evaluated
    tokens: int = 0
    dollars: float = 0.0
    roles: dict[int, str] = field(default_factory=dict)  # that users gave
    history: History = field(default_factory=History)
    last_at: float = 0.0

    def take(self, event: Event) -> None:
        """Updates the scene by one event: history, island or root, best candidate, tokens and dollars."""
        self.last_at = max(self.last_at, event.ended or event.started)
        self.history.take(event)
        if event.island is None or event.island < 0:
            self._take_root(event)
        else:
            self._take_island(event.island, event)
        if event.kind == "evaluation":
            self._take_evaluation(event)
        if event.kind == "expert" and event.ended is not None:
            self.tokens += int(event.data.get("tokens", 0))
            self.dollars += float(event.data.get("dollars", 0.0))

    def rate_per_min(self, now: float) -> float:
        """Evaluations a minute, of the last minute or of what there is of it."""
        recent = [at for at in self.times if at > now - RATE_S]
        since = max(now - RATE_S, self.times[0] if self.times else now)
        return 60.0 * len(recent) / max(now - since, 5.0)

    def role(self, island: int) -> str:
        """ "any" prefers nothing."""
        return self.roles.get(island, "any")

    def _take_root(self, event: Event) -> None:
        """Updates the phase and the baseline by an event outside of the islands."""
        if event.kind == "node" and event.ended is None:
            self.phase = event.name
        elif event.kind == "tool" and event.ended is None and event.island is None:
            self.phase = f"{self.phase.split(':')[0]}: {event.name}"
        elif event.kind == "note" and event.data.get("again"):
            for island in self.islands.values():
                island.ended = ""
        if event.kind == "tool" and event.name == "baseline" and event.ended is not None:
            self.eager_ms = event.data.get("eager_ms")

    def _take_island(self, number: int, event: Event) -> None:
        """Updates an island's step: what it does, its expert, proposal, reason, role and end."""
        self.phase = "search"
        island = self.islands.setdefault(number, IslandScene(number))
        step = self._step_of(island, event)
        if event.kind == "node" and event.ended is None:
            step.doing = DOING.get(event.name, event.name)
        elif event.kind == "expert" and event.data.get("purpose") == "propose":
            step.expert = event.name
            if event.ended is None:
                step.doing = f"thinks about {event.data.get('parent', '')}"
        elif event.kind == "expert" and event.data.get("purpose") == "diagnose" and event.ended is not None:
            island.reason = f"{event.data.get('candidate', '')}: {event.data.get('found', '')}"
        elif event.kind == "proposal":
            step.candidate = event.data["candidate"]
            island.reason = ": ".join(filter(None, (self.history.steps[-1].words, event.data["rationale"])))
        elif event.kind == "note" and event.name == "role":
            self.roles[number] = event.data["role"]
        elif event.kind == "note" and event.name == "paused":
            step.doing = "paused" if event.ended is None else "goes on"
        elif event.kind == "note" and event.name == "island ends":
            island.ended = str(event.data.get("reason", "")) or "done"

    def _step_of(self, island: IslandScene, event: Event) -> StepScene:
        """The step that an event is about."""
        found = _STEP.search(event.step)
        if found and int(found[2]) != island.step.generation:
            island.step = StepScene(int(found[2]), island.step.doing)
        return island.step

    def _take_evaluation(self, event: Event) -> None:
        """Updates the curve and the counts by a measured candidate; one that is proven again at the end counts once."""
        data = event.data
        speedup = float(data["speedup"]) if data["outcome"] == "correct" and data.get("speedup") else 0.0
        if speedup:
            low, high = data["speedup_ci95"]
            self._take_speedup(event, speedup, (float(low), float(high)))
        if event.name in self.known:  # proven again at the end
            return
        self.known.add(event.name)
        self.curve.append(self.sure)
        self.times.append(event.started)
        if event.island is not None and event.island >= 0:
            island = self.islands.setdefault(event.island, IslandScene(event.island))
            island.tried += 1
            if speedup:
                island.best = max(island.best or 0.0, speedup)

    def _take_speedup(self, event: Event, speedup: float, interval: tuple[float, float]) -> None:
        """Makes a candidate the best if its cautious speedup is higher; once there is a proof, only proofs count."""
        sure = _be_cautious(speedup, interval)
        is_proof = event.data.get("stage") == "final"  # the winner is chosen by proofs alone
        if is_proof and not self.is_proving:
            self.is_proving, self.sure = True, 0.0
        if sure > self.sure and is_proof == self.is_proving:
            self.sure, self.best, self.best_island = sure, (event.name, speedup, interval), event.island


def _be_cautious(speedup: float, interval: tuple[float, float]) -> float:
    """One standard deviation below a speedup (in its logarithm), so that noisy measurements do not mislead."""
    low, high = interval
    return speedup * math.exp(-math.log(high / low) / (2 * DEVIATIONS)) if low > 0.0 else 0.0
