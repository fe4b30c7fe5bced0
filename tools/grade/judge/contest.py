"""Baseline comparison: times the winning kernel in turns with other ways to run the reference. Runs in the judge.

The reference's process holds one model and its variants, which share parameters and inputs. So a comparison needs no
more processes than a timing, and compiled variants run where eager runs. The kernel has passed its proof by now: the
comparison decides nothing, and checks nothing that the proof has checked.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from foundry.knowledge.candidate import RivalName
from foundry.tools.grade.judge.link import KERNEL, RunnerFailed, RunnerLink
from foundry.tools.grade.judge.paired_timing import ColdCache, TimedInputs, find_changes, refresh, warm_up, window
from foundry.tools.process.channel import Message
from foundry.tools.protocol.foreign import DEFAULT_TF32, Tf32

BASELINE = "baseline"
MODES: dict[RivalName, str] = {"eager": "", "compile": "default", "compile max-autotune": "max-autotune"}
BUILD_CALLS = 3  # the first compiles, the next ones may record a CUDA graph
BLOCKS, FEWEST_BLOCKS = 24, 5  # samples of each side: most, and fewest if time is short
BUDGET_S = 2.0  # seconds for the samples of all sides together


class RivalLost(RunnerFailed):
    """The reference's process ended while it ran this variant."""

    def __init__(self, name: RivalName, failed: RunnerFailed) -> None:
        """Keeps the variant's name with the failure's outcome and evidence."""
        self.name = name
        super().__init__(failed.outcome, failed.evidence)

    def answer(self) -> Message:
        """The judge's answer to a request that lost this variant."""
        return {"lost": self.name, "line": self.evidence}


@dataclass(frozen=True)
class Entered:
    """The sides of a comparison: links with the names of their variants, calls that make a sample, peaks of memory.

    `problems` says why a variant cannot take part.
    """

    runs: list[tuple[RunnerLink, str]]
    calls: int
    peaks: list[int | None]
    problems: dict[str, str]


def enter(
    reference: RunnerLink,
    timed: TimedInputs,
    rivals: Sequence[RivalName],
    build_limits_s: dict[str, float],
    tf32: Tf32,
) -> Entered:
    """Prepares the reference and the other baselines for their turns, and compiles these in the reference's process.

    That process already holds the model as case 0 and the inputs. `tf32` is that of the baseline. A baseline that
    raises an exception becomes a problem of the result. Raises RunnerFailed, RivalLost.
    """
    timed.changes = timed.changes or find_changes(reference, timed, random.SystemRandom())
    calls = warm_up([reference], len(timed.inputs))
    peaks = [reference.peak_bytes(0)]
    reference.vary(BASELINE, 0, tf32=tf32)
    problems: dict[str, str] = {}
    for name in rivals:
        own_tf32 = DEFAULT_TF32 if name == "eager" else tf32
        if problem := _enter(reference, name, own_tf32, build_limits_s.get(name, 0.0)):
            problems[name] = problem
    runs = [(reference, BASELINE), *((reference, name) for name in rivals if name not in problems)]
    return Entered(runs, calls, peaks, problems)


def join(entered: Entered, kernel: RunnerLink, timed: TimedInputs) -> Entered:
    """`entered` and the kernel that won, whose process holds its model and the inputs. Raises RunnerFailed."""
    calls = max(entered.calls, warm_up([kernel], len(timed.inputs)))
    runs, peaks = [*entered.runs, (kernel, KERNEL)], [*entered.peaks, kernel.peak_bytes(0)]
    return replace(entered, runs=runs, calls=calls, peaks=peaks)


def take_turns(entered: Entered, timed: TimedInputs, cache: ColdCache) -> Message:
    """Times all sides in blocks of one call each, in random order.

    Returns {"samples": ms by side, "problems": words by baseline, "peaks": bytes, "device_s": seconds on the device}.
    """
    links = list(dict.fromkeys(link for link, _ in entered.runs))
    before = sum(link.device_s for link in links)
    samples = _take_turns(entered.runs, timed, cache, entered.calls)
    device_s = sum(link.device_s for link in links) - before
    return {"samples": samples, "problems": entered.problems, "peaks": entered.peaks, "device_s": device_s}


def _enter(reference: RunnerLink, name: RivalName, tf32: Tf32, build_limit_s: float) -> str:
    """Compiles one baseline. Returns the reason why it cannot take part, "" if it can.

    Raises RivalLost if its process is lost.
    """
    try:
        reference.vary(name, 0, compile_mode=MODES[name], tf32=tf32)
        reference.may_build(build_limit_s)
        for _ in range(BUILD_CALLS):
            reference.run([0], variant=name)
    except RunnerFailed as failed:
        if failed.has_raised or failed.outcome == "launch_failure":
            return failed.evidence
        raise RivalLost(name, failed) from failed
    return ""


def _take_turns(
    runs: Sequence[tuple[RunnerLink, str]], timed: TimedInputs, cache: ColdCache, calls: int
) -> dict[str, list[float]]:
    """Samples in ms of each side, taken in blocks of one sample a side in random order, on the same inputs with a cold
    cache.

    Ends after BLOCKS blocks, or after BUDGET_S seconds with at least FEWEST_BLOCKS. A first block does not count.
    """
    stream = random.SystemRandom()
    samples: dict[str, list[float]] = {name: [] for _, name in runs}
    links = list(dict.fromkeys(link for link, _ in runs))
    changes = timed.changes
    start = time.monotonic()
    for number in range(-1, BLOCKS):  # the first block touches everything once
        slots = window(number + 1, calls, timed)
        refresh(links, timed, slots)
        content = changes.draw(stream) if changes else (1.0, 0)
        for link, name in stream.sample(list(runs), len(runs)):
            link.perturb(slots, *content)
            cache.evict()
            sample = link.run(slots, variant=name)
            if number >= 0:
                samples[name].append(sample.own_ms)
        if number + 1 >= FEWEST_BLOCKS and time.monotonic() - start > BUDGET_S:
            break
    return samples
