"""Finds the tasks of a bench in a folder, and their order."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from foundry.graph.doors.bench.request import BenchRequest
from foundry.graph.doors.bench.sizes import input_elements
from foundry.knowledge.errors import TaskError, UsageError
from foundry.tools.task.file import read_task

KERNELBENCH = "KernelBench/level{level}"  # folders of tasks in a checkout of KernelBench
WILD = frozenset("*?[")
MOST_LAST, LAST_PART = 16, 3  # tasks that are kept for the end: so many, and so much of all of them
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0  # its multiples, without whole parts, lie as evenly as any


@dataclass(frozen=True)
class BenchTask:
    """One file; `name` is its path below the folder without the ending, `group` the level or "" ."""

    name: str
    path: str

    @property
    def group(self) -> str:
        """The task's folder: its name up to the last slash; "" without one."""
        return self.name.rpartition("/")[0]


def find_tasks(request: BenchRequest) -> list[BenchTask]:
    """The tasks that were asked for, in the order of the numbers in their names: the pattern first, then every n-th,
    then the shard. Raises UsageError when there are none."""
    root = Path(request.folder)
    folders = {f"level{level}/": root / KERNELBENCH.format(level=level) for level in request.levels} or {"": root}
    found: list[BenchTask] = []
    for prefix, folder in folders.items():
        if not folder.is_dir():
            raise UsageError(f"there is no folder {folder}", "name one that holds task files")
        files = sorted((path for path in folder.glob("*.py") if path.name[0] not in "._"), key=_in_order)
        found += [BenchTask(f"{prefix}{path.stem}", str(path)) for path in files]
    if not found:
        raise UsageError(f"{root} holds no task files", "a task is a .py file with Model and get_inputs")
    chosen = [task for task in found if _matches(task.name, request.only)]
    part, parts = request.shard
    chosen = chosen[:: request.every][part - 1 :: parts]
    if not chosen:
        raise UsageError(f"none of the {len(found)} tasks in {root} is asked for", "see --only, --every and --shard")
    return chosen


def mixed(tasks: Sequence[BenchTask]) -> list[BenchTask]:
    """The tasks in an order of which every beginning is spread over all of them: a bench that ends early, and the first
    minutes of a long one, then speak for the whole."""
    order = sorted(range(len(tasks)), key=lambda number: number * GOLDEN % 1.0)
    return [tasks[number] for number in order]


def in_turn(tasks: Sequence[BenchTask]) -> list[BenchTask]:
    """Mixed, but the smallest of them last, the larger ones first: several lanes then end at about the same time."""
    order = mixed(tasks)
    known = {task: elements for task in order if (elements := _elements_of(task)) is not None}
    last = sorted(known, key=lambda task: -known[task])[-min(MOST_LAST, len(order) // LAST_PART) or len(order) :]
    return [task for task in order if task not in last] + last


def _elements_of(task: BenchTask) -> int | None:
    """The count of elements of a task's inputs, read from its file; None if unknown."""
    try:
        return input_elements(Path(task.path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def digest_of(task: BenchTask) -> str:
    """The sha256 of the task's text and options, or of the file's bytes if it is no task."""
    path = Path(task.path)
    try:
        return read_task(path).digest
    except TaskError:
        return hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest()


def _in_order(path: Path) -> list[str | int]:
    """The key that sorts 2_x before 10_x."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.stem)]


def _matches(name: str, pattern: str) -> bool:
    """True if a name contains the pattern or, for a pattern with wild cards, matches it as a whole."""
    return fnmatchcase(name, pattern) if WILD & set(pattern) else pattern in name
