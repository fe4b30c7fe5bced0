"""Tests whether a candidate computes its result each time, or keeps results and finds them again. Runs in the judge.

A cache of complete results gives right answers, wherever it hides: in a workspace, in memory that comes back from the
allocator, in static variables. But it shows in the time: a call on the inputs of the call before is faster than one on
new inputs. Foundry's timing never repeats inputs, so such a cache gains nothing there; in a user's loop that measures
with one input it would gain everything.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

from foundry.tools.grade.judge.link import RunnerFailed, RunnerLink, Sample
from foundry.tools.grade.judge.paired_timing import ColdCache, PairSamples, TimedInputs, refresh, window
from foundry.tools.protocol.orders import COMPUTED_ANEW
from foundry.tools.protocol.statistics import SLOW_MS

ROUNDS, AGREEING = 8, 7  # a busy machine spoils some
FRESH, REPEATS = 8, 32  # calls on new inputs, and on the same: who waits for the third time shows too
FEW = 3  # rounds and calls for a candidate whose calls take SLOW_MS or more
AGAIN = 3  # times that this must show in a row
LONGEST_MS = 1000.0  # ms of repetitions at most: slow calls are repeated less often
REUSED = 0.6  # a repeated call below this part of a new one did not compute
SHORTEST_MS = 0.25  # ms; on a CPU a message between processes weighs as much as a shorter call
SHORTEST_ON_GPU_MS = 0.01  # a device's events tell half a microsecond


def check_computes_again(candidate: RunnerLink, timed: TimedInputs, cache: ColdCache, samples: PairSamples) -> None:
    """Times calls on new and on repeated inputs; raises RunnerFailed (cheating) if repeated ones are clearly faster.

    Calls shorter than SHORTEST_MS (on a GPU SHORTEST_ON_GPU_MS) are not tested.
    """
    shortest_ms = SHORTEST_MS if cache.on_cpu else SHORTEST_ON_GPU_MS
    if not samples.pairs or min(second for _, second in samples.pairs) < shortest_ms:
        return
    stream = random.SystemRandom()
    changes = timed.changes
    if changes is None:
        return
    is_slow = min(second for _, second in samples.pairs) >= SLOW_MS
    rounds, agreeing = (FEW, FEW) if is_slow else (ROUNDS, AGREEING)
    new: list[float] = []
    repeated: list[float] = []
    slots = window(0, 1, timed)  # the same memory in all calls: a first visit takes up to twice as long
    for _ in range(1 + rounds):
        refresh([candidate], timed, slots)
        content = changes.draw(stream)
        for times in (new, repeated):  # the same content written again: the same history right before both
            candidate.perturb(slots, *content)
            cache.evict()
            times.append(_sample_ms(candidate.run(slots), cache))
    del new[0], repeated[0]
    _check_many(candidate, timed, cache, changes.draw, slots=slots, fresh=FEW if is_slow else FRESH)
    quick = sum(second < REUSED * first for first, second in zip(new, repeated, strict=True))
    if quick >= agreeing and min(repeated) < REUSED * min(new):
        raise RunnerFailed(
            "cheating",
            f"a call on the inputs of the call before took {statistics.median(repeated):.3g} ms, one on new inputs "
            f"{statistics.median(new):.3g} ms, {quick} times out of {rounds}: results are kept and given out again",
            gate=COMPUTED_ANEW,
        )


def _check_many(
    candidate: RunnerLink,
    timed: TimedInputs,
    cache: ColdCache,
    draw: Callable[[random.Random], tuple[float, int]],
    slots: list[int],
    fresh: int,
) -> None:
    """Raises RunnerFailed as `check_computes_again`, after many repetitions with a warm cache: a loop that times one
    input."""
    stream = random.SystemRandom()

    def sampled_ms(count: int, contents: Callable[[], tuple[float, int]]) -> float:
        """Median ms of the later half of `count` samples, with inputs changed by `contents` before each."""
        times = []
        for _ in range(count):
            candidate.perturb(slots, *contents())
            times.append(_sample_ms(candidate.run(slots), cache))
        return statistics.median(times[count // 2 :])

    for _ in range(AGAIN):
        refresh([candidate], timed, slots)
        new = sampled_ms(fresh, lambda: draw(stream))
        same, repeats = draw(stream), max(fresh, min(REPEATS, int(LONGEST_MS / new)))
        repeated = sampled_ms(repeats, lambda: same)  # noqa: B023
        if repeated >= REUSED * new:
            return
    raise RunnerFailed(
        "cheating",
        f"after {repeats} calls on one input one takes {repeated:.3g} ms, on new ones {new:.3g} ms, {AGAIN} times "
        "in a row: results are kept and given out again",
        gate=COMPUTED_ANEW,
    )


def _sample_ms(sample: Sample, cache: ColdCache) -> float:
    """Time of a sample in ms: by the judge's clock on a CPU, by the device's events on a GPU.

    On a GPU the judge's clock would count the wait before the call too.
    """
    return sample.wall_ms if cache.on_cpu else sample.own_ms
