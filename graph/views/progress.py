"""The live view of a run: islands, who is at work, the best kernel so far, the budget. Only for a terminal."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from foundry.graph.run.events import Event
from foundry.graph.run.request import SolveRequest

REFRESH_PER_S = 4
_STEP = re.compile(r"i(\d+)g(\d+)$")


@dataclass
class IslandView:
    """One row: where an island is and what it does."""

    generation: int = 0
    activity: str = "starts"
    best: float | None = None
    tried: int = 0
    ended: str = ""


@dataclass
class Progress:
    """A listener of the run's events that draws them; use as a context manager."""

    console: Console
    request: SolveRequest
    phase: str = "starts"
    started: float = field(default_factory=time.time)
    evaluations: int = 0
    tokens: int = 0
    dollars: float = 0.0
    eager_ms: float | None = None
    best: tuple[str, float, list[float]] | None = None  # candidate, speedup, interval
    islands: dict[int, IslandView] = field(default_factory=dict)
    words: str = ""  # the last thing an expert or the user said

    def __post_init__(self) -> None:
        self._live = Live(
            console=self.console,
            get_renderable=self.view,
            refresh_per_second=REFRESH_PER_S,
            transient=True,
            redirect_stderr=False,
        )

    def __enter__(self) -> Progress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Leaves the terminal to somebody else."""
        self._live.stop()
        try:
            yield
        finally:
            self._live.start()

    def __call__(self, event: Event) -> None:
        """Takes one event; spans arrive when they open and again when they close."""
        if event.island is None or event.island < 0:
            self._root(event)
        else:
            self._island(event)
        if event.kind == "evaluation" and event.name.startswith("c"):
            self._note_evaluation(event)
        if event.kind == "expert" and event.ended is not None:
            self.tokens += int(event.data.get("tokens", 0))
            self.dollars += float(event.data.get("dollars", 0.0))
        if event.kind == "directive":
            told = event.data.get("answer") or event.data.get("text", "")
            self.words = f"{event.data.get('directive', '')} taken: {told}"
        if event.kind == "note" and event.name == "tuned":
            self.words = f"tuner: {event.data.get('tried')} configurations in {event.data.get('seconds')} s"
        if event.kind == "proposal":
            self.words = f"{event.name}: {event.data.get('rationale', '')}"

    def view(self) -> RenderableType:
        """The whole picture as it stands."""
        plan = self.request.plan
        search_s = 60 * (self.request.limits.minutes or plan.minutes)
        head = Text.assemble(
            (f"{self.phase}", "bold"),
            f"   {time.time() - self.started:.0f} s of {search_s:.0f} s search",
            f"   {self.evaluations} of {self.request.limits.evaluations or plan.evaluations} evaluations",
            f"   {self.tokens} tokens" if self.tokens else "",
            f", ${self.dollars:.2f}" if self.dollars else "",
        )
        best = Text(f"eager {self.eager_ms:.3f} ms" if self.eager_ms else "the baseline is being measured")
        if self.best:
            name, speedup, (low, high) = self.best
            best.append(f"   best {name}: {speedup:.2f}x [{low:.2f}, {high:.2f}]", style="green")
        table = Table("island", "role", "generation", "tried", "best", "at work", box=None, pad_edge=False)
        for number, row in sorted(self.islands.items()):
            best_here = f"{row.best:.2f}x" if row.best else "-"
            doing = f"ended: {row.ended}" if row.ended else row.activity
            table.add_row(str(number), self._role(number), str(row.generation), str(row.tried), best_here, doing)
        return Group(head, best, table, Text(self.words[:200], style="dim"))

    def _root(self, event: Event) -> None:
        if event.kind == "node":
            self.phase = event.name if event.ended is None else self.phase
        if event.kind == "tool" and event.ended is None:
            self.phase = f"{self.phase.split(':')[0]}: {event.name}"
        if event.kind == "tool" and event.name == "baseline" and event.ended is not None:
            self.eager_ms = event.data.get("eager_ms")

    def _island(self, event: Event) -> None:
        row = self.islands.setdefault(event.island or 0, IslandView())
        step = _STEP.search(event.step)
        if step:
            row.generation = int(step[2])
        if event.ended is None or event.kind in ("expert", "tool"):
            row.activity = event.name if event.ended is None else row.activity
        if event.kind == "note" and event.name == "island ends":
            row.ended = str(event.data.get("reason", ""))
        if event.kind == "evaluation":
            row.tried += 1
            speedup = event.data.get("speedup")
            if event.data.get("outcome") == "correct" and speedup:
                row.best = max(row.best or 0.0, float(speedup))

    def _note_evaluation(self, event: Event) -> None:
        if event.data.get("stage") in (None, "screen"):
            self.evaluations += 1
        speedup, interval = event.data.get("speedup"), event.data.get("speedup_ci95")
        if event.data.get("outcome") != "correct" or not speedup or not interval:
            return
        if self.best is None or speedup > self.best[1]:
            self.best = (event.name, float(speedup), [float(bound) for bound in interval])

    def _role(self, island: int) -> str:
        from foundry.graph.run.request import ROLES

        return ROLES[island % len(ROLES)]
