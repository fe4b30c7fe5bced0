"""A run told in plain lines, one a generation: for logs, pipes and `--plain`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from foundry.graph.proofs.pace import PLAN
from foundry.graph.run.closing import EARLY
from foundry.graph.run.events import Event
from foundry.graph.show.terminal.reader import RunReader
from foundry.graph.show.terminal.scene import Scene
from foundry.tools.words import make_printable

TOLD = (PLAN, EARLY)  # notes that a line is printed for
Say = Callable[[str], None]


@dataclass
class PlainLines:
    """Hears a run's events; `say` prints a line."""

    scene: Scene
    say: Say
    _began: float | None = field(default=None)
    _refused: set[tuple[str, str]] = field(default_factory=set)  # directives and why they cannot be followed

    def remember(self, path: Path) -> None:
        """Takes what a run has done before, without a word about it."""
        reader = RunReader(path)
        for event in reader.news():
            self.scene.take(event)
        reader.close()

    def take(self, event: Event) -> None:
        if self._began is None:
            self._began = event.started
        self.scene.take(event)
        if line := self._line(event):
            self.say(make_printable(line))

    def _line(self, event: Event) -> str:
        data = event.data
        if event.kind == "evaluation":
            return self._evaluated(event)
        if event.kind == "directive" and event.name == "taken":
            return self._taken(event)
        if event.kind == "note" and event.name == "island ends":
            return f"{self._clock(event)}  island {event.island} ends: {data.get('reason', '')}"
        if event.kind == "note" and event.name in TOLD and data.get("reason"):
            return f"{self._clock(event)}  {data['reason']}"
        if event.kind == "tool" and event.name == "baseline" and event.ended is not None and data.get("eager_ms"):
            return f"{self._clock(event)}  eager takes {data['eager_ms']:.3f} ms"
        return ""

    def _taken(self, event: Event) -> str:
        """`0.1 min  d1 (@tiling unroll 4) taken by island 2`; every island has the same reason not to follow it, which
        is said once."""
        data = event.data
        taken = f"{self._clock(event)}  {data['directive']} ({data['text']}) taken by {data['reader']}"
        if not data.get("answer"):
            return taken
        if (refused := (data["directive"], data["answer"])) in self._refused:
            return ""
        self._refused.add(refused)
        return f"{taken}, who cannot follow it: {data['answer']}"

    def _evaluated(self, event: Event) -> str:
        """`1.2 min  i0g4 tiling: c12 -> c57 row:set:unroll=4  correct 2.31x  (best c57 2.31x, evaluation 58)`."""
        scene, data = self.scene, event.data
        step = next((step for step in reversed(scene.history.steps) if step.candidate == event.name), None)
        if step is None or step.step != event.step:
            made = event.step if event.name in event.step else f"{event.step}: {event.name}"  # final/c57
        else:
            what = ", ".join(step.moves) or step.rationale[:60]
            made = f"{event.step} {step.expert}: {step.parent} -> {event.name} {what}"
        gain = f" {data['speedup']:.2f}x" if data.get("speedup") else ""
        best = f"best {scene.best[0]} {scene.best[1]:.2f}x, " if scene.best else ""
        return f"{self._clock(event)}  {made}  {data['outcome']}{gain}  ({best}evaluation {len(scene.curve)})"

    def _clock(self, event: Event) -> str:
        return f"{(event.started - (self._began or event.started)) / 60:4.1f} min"
