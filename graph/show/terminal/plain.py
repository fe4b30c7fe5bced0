"""A run told in plain lines, one an evaluation: for logs, pipes and `--plain`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from foundry.graph.proofs.pace import PLAN
from foundry.graph.run.closing import EARLY, FINAL
from foundry.graph.run.events import Event
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.terminal.reader import RunReader
from foundry.graph.show.terminal.scene import Scene
from foundry.knowledge.step_words import recipe_lines, spoken
from foundry.tools.words import make_printable

TOLD = (PLAN, EARLY)  # notes that a line is printed for
PROOFS = {FINAL: "proof", EARLY: "early proof"}
MOST_CHARS = 100  # characters of the reason that speaks against a candidate
Say = Callable[[str], None]


@dataclass
class PlainLines:
    """Hears a run's events; `say` prints a line. `run` is the folder with the recipes, if they are shown in full."""

    scene: Scene
    say: Say
    run: RunDirectory | None = None
    _began: float | None = field(default=None)
    _taken_before: set[tuple[str, str]] = field(default_factory=set)  # directives and why they cannot be followed

    def remember(self, path: Path, *, verbose: bool = False) -> None:
        """Takes what a run has done before, without a word about it; `verbose` shows the recipes from now on."""
        reader = RunReader(path)
        for event in reader.news():
            self.scene.take(event)
        reader.close()
        self.run = RunDirectory.inspect(path, reading=True) if verbose else None

    def close(self) -> None:
        """Closes the run's folder, if one was given."""
        if self.run is not None:
            self.run.close()

    def take(self, event: Event) -> None:
        """Adds an event and prints its line, if it has one."""
        if self._began is None:
            self._began = event.started
        self.scene.take(event)
        if line := self._line(event):
            self.say(make_printable(line))
        for detail in self._details(event) if event.kind == "evaluation" else ():
            self.say(f"            {make_printable(detail)}")

    def _line(self, event: Event) -> str:
        """The line for an evaluation, a directive that was taken, an island's end, a told note or the baseline; "" for
        all others."""
        data = event.data
        if event.kind == "evaluation":
            return self._evaluated(event)
        if event.kind == "directive" and event.name == "taken":
            return self._taken(event)
        if event.kind == "note" and event.name == "island ends":
            return f"{self._clock(event)}  island {event.island} ends: {ending_words(str(data.get('reason', '')))}"
        if event.kind == "note" and event.name in TOLD and data.get("reason"):
            return f"{self._clock(event)}  {data['reason']}"
        if event.kind == "tool" and event.name == "baseline" and event.ended is not None and data.get("eager_ms"):
            return f"{self._clock(event)}  PyTorch eager takes {data['eager_ms']:.3f} ms"
        return ""

    def _taken(self, event: Event) -> str:
        """`0.1 min  d1 (@tiling unroll 4) taken by island 2`. The first island that takes it is told, and the first one
        with a reason not to follow it."""
        data = event.data
        if (said := (data["directive"], data.get("answer", ""))) in self._taken_before:
            return ""
        self._taken_before.add(said)
        taken = f"{self._clock(event)}  {data['directive']} ({data['text']}) taken by {data['reader']}"
        return f"{taken}, which cannot follow it: {data['answer']}" if data.get("answer") else taken

    def _evaluated(self, event: Event) -> str:
        """The line for an evaluation: time, candidate, expert, moves, speedup or outcome, and the best so far.

        `1.2 min c57 tiling: unroll 8 vectors, chunk 4096 points: 1.27x (best c40 1.31x, evaluation 58)`.
        """
        scene, data = self.scene, event.data
        came = spoken(data["outcome"])
        if data["outcome"] != "correct":
            came = f"{came}, {_short(data['evidence'])}" if data.get("evidence") else came
        elif data.get("speedup"):
            came = f"{data['speedup']:.2f}x"
        best = f"best {scene.best[0]} {scene.best[1]:.2f}x, " if scene.best else ""
        return f"{self._clock(event)}  {event.name} {self._made(event)}: {came} ({best}evaluation {len(scene.curve)})"

    def _made(self, event: Event) -> str:
        """The step that made a candidate, or which proof of it this is: `tiling: unroll 8 vectors`."""
        if proof := PROOFS.get(str(event.data.get("expert"))):
            return proof
        step = next((step for step in reversed(self.scene.history.steps) if step.candidate == event.name), None)
        if step is None:
            return str(event.data.get("made") or event.step)
        return f"{step.expert}: {step.change}"

    def _details(self, event: Event) -> Iterator[str]:
        """The step, the parent and the whole recipe of a candidate that was evaluated for the first time."""
        decision = self.run.decision(event.name) if self.run and event.data.get("expert") not in PROOFS else None
        if decision is not None:
            parents = decision.candidate.parents
            yield f"step {decision.step}" + (f", from {', '.join(parents)}" if parents else "")
            yield from recipe_lines(decision.candidate.recipe) if decision.candidate.recipe else ()

    def _clock(self, event: Event) -> str:
        """Minutes from the first event to the start of this one, as text."""
        return f"{(event.started - (self._began or event.started)) / 60:4.1f} min"


def ending_words(reason: str) -> str:
    """Why an island ended: `the budget of 8 evaluations is spent (6 candidates, 2 kept for steps under way)`."""
    budget = re.fullmatch(r"budget: ([^(]+?)( \(.*)?", reason)
    return f"the budget of {budget[1]} is spent{budget[2] or ''}" if budget else reason


def _short(text: str) -> str:
    """The text as one line, white space collapsed, cut with "..." at MOST_CHARS."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_CHARS else f"{line[: MOST_CHARS - 3]}..."
