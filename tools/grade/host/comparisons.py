"""Baseline comparison in the main process: times the winner and other ways to run the reference, each in a fresh
process.

Free of torch.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from foundry.knowledge import codec
from foundry.knowledge.candidate import Contest, ForeignVerdict, Rival, RivalName
from foundry.tools.grade.host.runner_pool import Runners
from foundry.tools.machine.holds import Holds
from foundry.tools.machine.scratch import plain_folder
from foundry.tools.process.channel import ChannelClosed, Message
from foundry.tools.process.zygote import Worker, WorkerDied

BUILD_LIMITS_S: dict[RivalName, float] = {"compile": 120.0, "compile max-autotune": 600.0}


class PreparedContest:
    """The reference's process with its compiled variants (`rivals`), linked to one judge.

    Compiling takes seconds and needs no kernel, so it may be done during the search. `cache` is a folder for
    TorchInductor; another one is used if its path holds a space, because TorchInductor does not quote it.
    """

    def __init__(
        self, runners: Runners, message: Message, rivals: Sequence[RivalName], cache: Path, limit_s: float
    ) -> None:
        """Chooses TorchInductor's cache folder; starts no process. `limit_s` is the time limit of one request to the
        judge."""
        self.rivals = list(rivals)
        self._runners, self._message, self._limit_s = runners, message, limit_s
        self._lost: dict[RivalName, str] = {}
        self._problem: Message = {}  # why it cannot be held
        self._open = contextlib.ExitStack()
        plain = self._open.enter_context(plain_folder(cache, "inductor"))
        self._environment = {"TORCHINDUCTOR_CACHE_DIR": str(plain)}
        if plain != cache:  # temporary files of it are handed to the compiler too
            self._environment["TMPDIR"] = str(plain)
        self._judge: Worker | None = None
        self._reference: Worker | None = None
        self._seconds = 0.0

    @property
    def is_ready(self) -> bool:
        """True if the judge and the reference's process are alive and compiling did not fail."""
        parts = (self._judge, self._reference)
        return not self._problem and all(one is not None and one.alive for one in parts)

    def ready(self, judges: contextlib.AbstractContextManager[Worker], holds: Holds) -> None:
        """Starts the reference's process and has it compile the variants.

        A variant that ends this process is left out, and the others are compiled anew in a fresh one. The device is
        shared meanwhile, but held alone for max-autotune, which times kernels itself.
        """
        judge, start = self._open.enter_context(judges), time.monotonic()
        self._judge = judge
        while True:
            left = [name for name in self.rivals if name not in self._lost]
            asked = {**self._message, "do": "ready_contest", "rivals": left, "build_limits_s": BUILD_LIMITS_S}
            reference = self._reference = self._runners.fresh(environment=self._environment)
            with holds.alone() if "compile max-autotune" in left else holds.shared():
                answer = self._ask(judge, asked, [reference], holds)
            if "lost" not in answer:
                break
            self._lost[answer["lost"]] = str(answer["line"])
            self._runners.discard(reference)
        if "failed" in answer or "error" in answer:
            self._problem = answer
        self._seconds = time.monotonic() - start

    def hold(self, message: Message, holds: Holds) -> Contest:
        """Times the variants in turns, with the kernel in the message's "text" if there is one, and returns the
        record."""
        start, kernels = time.monotonic(), list[Worker]()
        answer = self._problem or self._time_in_turns({**self._message, **message}, kernels, holds)
        for kernel in kernels:
            self._runners.discard(kernel)
        left = [name for name in self.rivals if name not in self._lost]
        return contest_of(answer, left, self._lost, self._seconds + time.monotonic() - start)

    def close(self) -> None:
        """Ends the reference's process and gives the judge back."""
        if self._reference is not None:
            self._runners.discard(self._reference)
        if self._judge is not None:
            with contextlib.suppress(WorkerDied):
                self._judge.request({"do": "release"})
        self._open.close()

    def _time_in_turns(self, message: Message, kernels: list[Worker], holds: Holds) -> Message:
        """The judge's answer with samples of each variant. First links a process of the kernel, if there is one, and
        appends it to `kernels`; holds the device alone while calls are timed."""
        assert self._judge is not None, "it is readied first"
        if message["text"]:
            kernels.append(self._runners.take(message["text"]))
            with holds.shared():
                joined = self._ask(self._judge, {**message, "do": "join_contest"}, kernels, holds)
            if joined.keys() & {"failed", "error"}:
                return joined
        with holds.alone():
            answer = self._ask(self._judge, {**message, "do": "contest"}, [], holds, watched=kernels)
            holds.count(answer)
        return answer

    def _ask(
        self, judge: Worker, message: Message, workers: Sequence[Worker], holds: Holds, watched: Sequence[Worker] = ()
    ) -> Message:
        """The judge's answer to one request, or a "failed" answer if a process died. `workers` are linked to the judge
        first."""

        def tick() -> None:
            """Ends each process except the reference's that broke a limit."""
            for worker in (*workers, *watched):
                if worker is not self._reference and worker.excess():
                    worker.end()

        try:
            with self._runners.links(workers) as handles:
                answer, _ = judge.request(message, handles, timeout_s=self._limit_s, tick=tick, pause=holds.pause)
        except (WorkerDied, ChannelClosed) as error:
            return {"failed": ["crash", str(error)]}
        return answer


def contest_of(answer: Message, rivals: Sequence[RivalName], lost: Mapping[RivalName, str], seconds: float) -> Contest:
    """The record of a judge's answer; a failure becomes its `problem`. `rivals` are the variants asked for; `lost`
    holds those that ended an earlier process, with its last line."""
    gone = [Rival(name, problem=line) for name, line in lost.items()]
    if "samples" not in answer:
        problem = str((answer.get("failed") or answer.get("error") or ["", "the judge gave no answer"])[1])
        return Contest(tuple(gone), seconds=seconds, problem=f"the contest was not held: {problem}")
    samples: dict[str, list[float]] = answer["samples"]
    problems: dict[str, str] = answer["problems"]
    kernel, baseline = samples.get("kernel"), samples["baseline"]
    found = [
        Rival(name, problem=problems[name]) if name in problems else _rival(name, samples[name], baseline, kernel)
        for name in rivals
    ]
    peaks, foreign = [*answer["peaks"], None], answer.get("foreign")
    return Contest(
        rivals=(*found, *gone),
        blocks=len(baseline),
        baseline_ms=statistics.median(baseline),
        candidate_ms=statistics.median(kernel) if kernel else None,
        baseline_peak_bytes=peaks[0],
        candidate_peak_bytes=peaks[1],
        foreign=codec.decode(ForeignVerdict, json.dumps(foreign)) if foreign else None,
        seconds=seconds,
        problem=str(answer.get("foreign_problem", "")),
    )


def _rival(name: RivalName, own: Sequence[float], baseline: Sequence[float], kernel: Sequence[float] | None) -> Rival:
    """The record of one variant: median ms, the baseline's median ratio to it, and its median ratio to the kernel, if
    any."""
    by_kernel = paired_ratio(own, kernel) if kernel else None
    return Rival(name, statistics.median(own), paired_ratio(baseline, own), by_kernel)


def paired_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """The median of the ratios first/second of samples of the same block, taken in logarithms."""
    return math.exp(statistics.median(math.log(one / other) for one, other in zip(first, second, strict=True)))
