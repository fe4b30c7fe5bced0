"""How far a bench is and when it will have ended: a bar on a terminal, a line a task elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from foundry.graph.doors.bench.report import interval, milliseconds, times
from foundry.graph.doors.bench.results import TaskResult
from foundry.graph.doors.bench.tasks import BenchTask
from foundry.tools.words import make_printable

LONGEST = 5  # tools of a task that its line names with their seconds
WORK = {  # tool -> its work in words
    "intake": "trying the task",
    "baseline": "timing PyTorch",
    "build": "compiling",
    "verify": "checking",
    "time": "timing",
    "profile": "profiling",
    "tune": "tuning",
    "contest": "comparison",
    "start workers": "starting processes",
    "ceilings": "measuring the device",
}
STAGES = {"final": " of proofs", "full": " at length", "screen": " briefly"}
Say = Callable[[str], None]


@dataclass
class BenchProgress:
    """Shows the progress of a bench as tasks begin and end; use as a context manager. `say` prints a line."""

    console: Console
    say: Say
    tasks: int
    finished: int  # tasks that earlier calls finished
    began: float = field(default_factory=time.time)
    _here: int = 0

    def __post_init__(self) -> None:
        """Makes the bar, shown on a terminal only."""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[end]}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._row = self._bar.add_task("begins", total=self.tasks, completed=self.finished, end="")

    def __enter__(self) -> BenchProgress:
        """Shows the bar."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the bar; an exception goes on."""
        self._bar.stop()

    def __call__(self, task: BenchTask, result: TaskResult | None) -> None:
        """Shows that a task begins (`result` None), or that it has ended, with its line."""
        if result is None:
            self._bar.update(self._row, description=make_printable(task.name))
            return
        self._here += 1
        self.finished += 1
        end = self._expected_end()
        self._bar.update(self._row, completed=self.finished, end=end)
        line = f"[{self.finished}/{self.tasks}] {task_line(result)}"
        if self.console.is_terminal:
            self._bar.console.print(make_printable(line), markup=False, highlight=False)
        else:
            self.say(make_printable(f"{line}; {end}" if end else line))

    def _expected_end(self) -> str:
        """When the bench ends at the pace of this call, in words; "" after the last task."""
        left = self.tasks - self.finished
        if left == 0:
            return ""
        seconds = (time.time() - self.began) / self._here * left
        end = datetime.now() + timedelta(seconds=seconds)
        day = "" if end.date() == datetime.now().date() else f"{end:%a} "
        return f"ends about {day}{end:%H:%M}"


def task_line(result: TaskResult) -> str:
    """A finished task in one line: speedup and times, or why it failed, and where the seconds went."""
    parts = ", ".join(f"{_work(name)} {spent:.0f}" for name, spent in list(result.spent_s.items())[:LONGEST])
    seconds = f"{result.wall_s:.0f} s" + (f" ({parts})" if parts else "")
    if result.is_accepted:
        versus = f", {times(result.speedup_vs_compile)} that of torch.compile" if result.speedup_vs_compile else ""
        took = f"{milliseconds(result.candidate_ms)} ms against {milliseconds(result.baseline_ms)} ms"
        return f"{result.task}: {interval(result)} the speed of eager{versus}, {took}; {seconds}"
    ending = f"not counted, {result.excluded}" if result.excluded else result.verdict
    return f"{result.task}: {ending}: {result.reason}; {seconds}"


def _work(tool: str) -> str:
    """The work of a tool in words: `timing of proofs` for `time final`."""
    name, _, stage = tool.rpartition(" ") if tool.endswith(tuple(STAGES)) else (tool, "", "")
    return WORK.get(name, name) + STAGES.get(stage, "")
