"""The result file of a bench: one line of JSON a finished task, appended whole or not at all."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from foundry.graph.doors.bench.request import BenchRequest, Protocol
from foundry.graph.run.summary import RunVerdict
from foundry.knowledge.candidate import ForeignVerdict
from foundry.knowledge.codec import decode as decoded
from foundry.knowledge.codec import encode, to_plain
from foundry.knowledge.errors import NotComparable, UsageError

Excluded = Literal["", "random", "no question tells right from wrong"]
RESULTS, SETTINGS = "results.jsonl", "bench.json"


@dataclass(frozen=True)
class TaskResult:
    """The result of one task. Speedups are over PyTorch eager (TF32 allowed on CUDA) unless their name says otherwise;
    unknown and unmeasured values are None."""

    task: str
    digest: str  # sha256 of the task's text and options
    verdict: RunVerdict
    reason: str = ""  # one line: why there is no accepted kernel
    excluded: Excluded = ""  # why the task does not count
    speedup: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    baseline_ms: float | None = None
    candidate_ms: float | None = None
    # Baselines that are timed in turns with the kernel: PyTorch eager with its default arithmetic, torch.compile, and
    # torch.compile in mode max-autotune. `NAME_speedup` is the time of eager (TF32 allowed) over the baseline's time,
    # `speedup_vs_NAME` is the baseline's time over the kernel's. `turns_baseline_ms` and `turns_candidate_ms` are from
    # the same turns; the proof's times are others.
    turns_baseline_ms: float | None = None
    turns_candidate_ms: float | None = None
    eager_ms: float | None = None
    eager_speedup: float | None = None
    speedup_vs_eager: float | None = None
    compile_ms: float | None = None
    compile_speedup: float | None = None
    speedup_vs_compile: float | None = None
    autotune_ms: float | None = None
    autotune_speedup: float | None = None
    speedup_vs_autotune: float | None = None
    protocol: Protocol = "foundry"
    foreign: ForeignVerdict | None = None  # what that protocol's rules say of the kernel, where it is not ours
    labels: list[str] = field(default_factory=list)
    accuracy_class: str | None = None
    fraction_of_floor: float | None = None
    peak_memory_ratio: float | None = None  # kernel over eager, of one call with its inputs and parameters
    evaluations: int = 0
    evaluated_s: list[float] = field(default_factory=list)  # when each evaluation ended, from the start of the run
    spent_s: dict[str, float] = field(
        default_factory=dict
    )  # tool -> seconds, the longest first; several at once add up
    first_verified_s: float | None = None
    wall_s: float = 0.0
    sessions: int = 1  # more than one: the run was killed or stopped, and times from its start hold the pauses
    run: str = ""  # folder, below the bench's own as the two after it
    kernel: str | None = None
    receipt: str | None = None
    notes: list[str] = field(default_factory=list)
    finished: str = ""  # ISO 8601, UTC
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """True unless the task is excluded."""
        return not self.excluded

    @property
    def is_accepted(self) -> bool:
        """True if the task counts and has an accepted kernel with a measured speedup."""
        return self.counts and self.verdict == "accepted" and self.speedup is not None


class ResultFile:
    """Reads and appends; any number of processes may do so at once."""

    def __init__(self, folder: Path) -> None:
        """Reads nothing yet; the file is in `folder`."""
        self.path = folder / RESULTS
        self._read: tuple[int, dict[str, TaskResult]] = (0, {})  # (size of the file, latest line of each task)

    def append(self, result: TaskResult) -> None:
        """Appends a line in one write below a lock, so that no kill and no other process leaves half a line."""
        line = f"{encode(result)}\n".encode()
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            size = os.fstat(handle).st_size
            is_torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"  # a full disk did that
            os.write(handle, b"\n" + line if is_torn else line)
            os.fsync(handle)
        finally:
            os.close(handle)

    def read(self) -> list[TaskResult]:
        """The latest line of each task in the order of the file; a line that cannot be read is none."""
        return list(self._latest().values())

    def knows(self, task: str, digest: str) -> TaskResult | None:
        """The line of a task as it stands now; None when it has not finished, or was changed since."""
        line = self._latest().get(task)
        return line if line is not None and line.digest == digest else None

    def _latest(self) -> dict[str, TaskResult]:
        """Latest result of each task; read again only when the file, which only grows, has grown. Broken lines are
        skipped."""
        try:
            raw = self.path.read_bytes() if self.path.stat().st_size != self._read[0] else None
        except FileNotFoundError:
            return {}
        if raw is not None:
            found: dict[str, TaskResult] = {}
            for line in raw.splitlines():
                try:
                    result = decoded(TaskResult, line)
                except UsageError:
                    continue
                found[result.task] = result
            self._read = (len(raw), found)
        return self._read[1]


def settle(request: BenchRequest, versions: dict[str, str]) -> None:
    """Makes the folder of the results, or checks that it was begun with the same settings, so that its lines can be
    compared. Which tasks are asked for may differ. Raises UsageError, NotComparable."""
    asked = {
        "effort": request.effort,
        "limits": to_plain(request.limits),
        "seed": request.seed,
        "rivals": list(request.rivals),
        "protocol": request.protocol,
    }
    path = request.where / SETTINGS
    try:
        request.where.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_text()) if path.exists() else None
        if known is None:
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_text(json.dumps({"settings": asked, "versions": versions}, indent=2) + "\n")
            temporary.replace(path)
            return
    except OSError as error:
        raise UsageError(f"cannot write {request.where}: {error.strerror}", "name another folder with --out") from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}", "name another folder with --out") from error
    for name, value in asked.items():
        if known["settings"].get(name) != value:
            raise UsageError(
                f"{request.where} was begun with {name} {known['settings'].get(name)}, not {value}",
                "name another folder with --out",
            )
    for name, version in versions.items():
        if known["versions"].get(name) != version:
            raise NotComparable(
                f"{request.where} was begun with {name} {known['versions'].get(name)}, this is {version}",
                "name another folder with --out",
            )
