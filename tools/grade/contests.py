"""A contest from the main process: the winner and its rivals in fresh processes, and the record. Free of torch."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from foundry.knowledge import codec
from foundry.knowledge.candidate import Contest, ForeignVerdict, Rival, RivalName
from foundry.tools.grade.judges import Judges
from foundry.tools.grade.runners import Runners
from foundry.tools.machine.holds import Holds
from foundry.tools.process.channel import ChannelClosed, Message
from foundry.tools.process.zygote import Worker, WorkerDied

CONTEST_S = 1800.0
BUILD_LIMITS_S: dict[RivalName, float] = {"compile": 120.0, "compile max-autotune": 600.0}


def hold_contest(
    judges: Judges, runners: Runners, holds: Holds, message: Message, rivals: Sequence[RivalName], cache: Path
) -> Contest:
    """What cannot be measured is data. A rival with which the reference's process ends is left out, and the rest is
    measured again. `cache`: a folder for TorchInductor's."""
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(cache)}
    start, lost = time.monotonic(), dict[RivalName, str]()
    while True:
        left = [name for name in rivals if name not in lost]
        asked = {**message, "rivals": left, "build_limits_s": BUILD_LIMITS_S}
        with judges.one() as judge, holds.whole():
            answer = _hold_once(judge, runners, holds, asked, environment)
        if "lost" not in answer:
            return contest_of(answer, left, lost, time.monotonic() - start)
        lost[answer["lost"]] = str(answer["line"])


def _hold_once(judge: Worker, runners: Runners, holds: Holds, message: Message, environment: dict[str, str]) -> Message:
    """The device is shared while compilers run, unless they time kernels themselves."""
    kernels = [runners.take(message["text"])] if message["text"] else []
    workers = [runners.fresh(environment=environment), *kernels]

    def tick() -> None:
        for worker in kernels:
            if worker.excess():
                worker.end()

    quiet = "compile max-autotune" in message["rivals"]
    try:
        with holds.alone() if quiet else holds.shared(), runners.links(workers) as handles:
            asked = {**message, "do": "ready_contest"}
            ready, _ = judge.request(asked, handles, timeout_s=CONTEST_S, tick=tick, pause=holds.pause)
        if ready.keys() & {"lost", "failed", "error"}:
            return ready
        with holds.alone():
            answer, _ = judge.request({**message, "do": "contest"}, timeout_s=CONTEST_S, tick=tick)
            holds.count(answer)
            return answer
    except (WorkerDied, ChannelClosed) as error:
        return {"failed": ["crash", str(error)]}
    finally:
        for worker in workers:
            runners.discard(worker)


def contest_of(answer: Message, rivals: Sequence[RivalName], lost: Mapping[RivalName, str], seconds: float) -> Contest:
    """`rivals` are those that were asked for in this answer; `lost` ended the process of an earlier one."""
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
    by_kernel = paired_ratio(own, kernel) if kernel else None
    return Rival(name, statistics.median(own), paired_ratio(baseline, own), by_kernel)


def paired_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """The median of the blocks' ratios first over second."""
    return math.exp(statistics.median(math.log(one / other) for one, other in zip(first, second, strict=True)))
