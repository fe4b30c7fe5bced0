"""A user's request of a bench: the tasks, the effort for each, the folder of the results."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from foundry.graph.run.request import EFFORTS, EffortName, RunLimits
from foundry.knowledge.candidate import RivalName
from foundry.knowledge.device import TargetName
from foundry.knowledge.errors import UsageError

Protocol = Literal["foundry", "verified", "kernelbench"]  # rules that winners are judged by, besides our own


@dataclass(frozen=True)
class BenchRequest:
    """A bench's tasks, effort and folders; JSON-able, because lanes in other processes receive it."""

    folder: str  # folder of task files, or a checkout of KernelBench if `levels` are given
    out: str
    levels: tuple[int, ...] = ()
    target: TargetName | Literal["auto"] = "auto"
    effort: EffortName = "bench"
    limits: RunLimits = field(default_factory=RunLimits)
    seed: int = 0
    rivals: tuple[RivalName, ...] = ("eager", "compile")
    protocol: Protocol = "foundry"
    only: str = ""
    every: int = 1
    shard: tuple[int, int] = (1, 1)  # (number from 1, count)
    is_sharing: bool = False  # True if other lanes use the GPU too: a task that needs more than its part is left

    def __post_init__(self) -> None:
        """Raises UsageError for a shard, step or effort that does not exist."""
        part, parts = self.shard
        if not 1 <= part <= parts:
            raise UsageError(f"--shard {part}/{parts}", "for example 1/4, 2/4, 3/4 and 4/4")
        if self.every < 1:
            raise UsageError(f"--every {self.every}", "a whole number of at least 1")
        if self.effort not in EFFORTS:
            raise UsageError(f"unknown effort {self.effort!r}", f"one of {', '.join(EFFORTS)}")

    @property
    def where(self) -> Path:
        """The folder of the results, as a path."""
        return Path(self.out)


def shard_of(text: str) -> tuple[int, int]:
    """The two numbers of "2/4", their range unchecked. Raises UsageError for any other form."""
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit()):
        raise UsageError(f"--shard {text}", "for example 2/4: the second of four parts")
    return int(part), int(parts)


def levels_of(text: str) -> tuple[int, ...]:
    """The numbers of "1,2,3"; raises UsageError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() for word in words):
        raise UsageError(f"--levels {text}", "for example 1,2,3")
    return tuple(int(word) for word in words)
