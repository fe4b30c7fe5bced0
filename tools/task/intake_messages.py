"""Questions of the main process to a process that runs the task, and the answers. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from foundry.knowledge.opgraph import OperatorRun, OpGraph, TensorSpec
from foundry.tools.process.messages import Packing
from foundry.tools.task.gpu_plan import Sizes


@dataclass(frozen=True)
class TaskPlace:
    """An encoded task, the threads and device to run it on, and the most bytes of a GPU's memory (0: no limit)."""

    task: str
    threads: int
    device: str
    gpu_bytes: int = 0


@dataclass(frozen=True)
class CheckedTask:
    """Shapes of a task's inputs and outputs, what one call needs, and the free bytes of a GPU (0 on a CPU)."""

    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    sizes: Sizes
    free_bytes: int


@dataclass(frozen=True)
class RanOperators:
    """The operators that a task without a graph runs, and their work; empty if that cannot be seen either."""

    rows: list[OperatorRun] = field(default_factory=list)
    work: int = 0


@dataclass(frozen=True)
class Captured:
    """One graph for each case; or the reason why there is none, and what PyTorch runs instead."""

    graphs: list[OpGraph]
    note: str = ""
    ran: RanOperators = field(default_factory=RanOperators)


class TaskQuestions(Protocol):
    """Questions about a task; `intake` has a method for each."""

    def check(self, where: TaskPlace) -> CheckedTask: ...
    def capture(self, where: TaskPlace) -> Captured: ...
    def ran(self, where: TaskPlace) -> RanOperators: ...
    def draw(self, where: TaskPlace, seed: int) -> Packing: ...
