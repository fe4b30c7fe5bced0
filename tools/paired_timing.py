"""ABBA timing of two resident runners, ordered by the judge. Runs in the judge (imports torch).

Before each sample the judge streams through a buffer larger than the last-level cache, so that both sides start cold;
inputs rotate among several sets and are permuted in place between pairs, so that no call sees an earlier call's
content; some timed outputs are fetched and compared with PyTorch's of the same pair. The runner's own clock gives the
time; the judge's clock around the same call must agree.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from foundry.knowledge.opgraph import TensorSpec
from foundry.tools import bundle, comparison
from foundry.tools.channel import Message
from foundry.tools.protocol import OutputError, accepts, norm_floor
from foundry.tools.runner_link import RunnerFailed, RunnerLink
from foundry.tools.timing import Effort, Ratio, paired_ratio

EVICT_LIMIT_BYTES = 128 << 20
EVICT_FACTOR = 2  # times the last-level cache
SHORT_MS = 0.2  # below this a sample is several calls in a row, of which only the first is cold
MAX_CALLS = 32
WARM_UP_CALLS = 2
SLOT_BYTES = 128 << 20  # all input sets together
BLOCK_SHARE = 64  # a permuted block is this part of a tensor
GIVE_UP_FACTOR = 1.2
BASELINE_SAMPLES = 15
BASELINE_BUDGET_S = 2.5


@dataclass(frozen=True)
class Question:
    """What both sides are timed on: input sets, what an output looks like, and PyTorch's own error on such inputs."""

    inputs: Sequence[tuple[Message, int]]
    specs: list[TensorSpec]
    errors: list[OutputError]


@dataclass
class Samples:
    """Pairs [baseline ms, candidate ms]; `wall_ratio` is the judge's clock over the candidate's own."""

    pairs: list[tuple[float, float]] = field(default_factory=list)
    walls: list[tuple[float, float]] = field(default_factory=list)
    checked: int = 0
    seconds: float = 0.0

    @property
    def wall_ratio(self) -> float:
        """1 for an honest clock: the candidate's wall time, less what a message costs (known from the baseline's
        calls), over its own time. Of the middle half of the samples the ratio nearest to 1, because a busy machine
        delays single messages while a false clock is false in every sample."""
        if len(self.pairs) < 4:
            return 1.0
        message_ms = statistics.median(wall - pair[0] for wall, pair in zip(self._first(), self.pairs, strict=True))
        ratios = [(wall - message_ms) / pair[1] for (_, wall), pair in zip(self.walls, self.pairs, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        return min(max(1.0, low), high)

    def _first(self) -> list[float]:
        return [wall for wall, _ in self.walls]


class ColdCache:
    """Evicts what the runners share with the judge: the last-level cache, and the cores' own as far as threads move."""

    def __init__(self, cache_bytes: int, *, on_cpu: bool) -> None:
        size = min(max(EVICT_FACTOR * cache_bytes, 1 << 20), EVICT_LIMIT_BYTES)
        self._buffer = torch.zeros(size // 4, dtype=torch.float32) if on_cpu else None

    def evict(self) -> None:
        if self._buffer is not None:  # a GPU runner flushes its own L2 before each event
            self._buffer.add_(1.0)


def slots_for(input_bytes: int) -> int:
    """How many sets of inputs to rotate among."""
    return max(2, min(4, SLOT_BYTES // max(input_bytes, 1)))


def time_alone(side: RunnerLink, question: Question, cache: ColdCache) -> list[float]:
    """Samples (ms a call) of one side, cold; for the first look at the baseline."""
    calls = _warm_up([side])
    samples: list[float] = []
    start = time.perf_counter()
    while len(samples) < 5 or (len(samples) < BASELINE_SAMPLES and time.perf_counter() - start < BASELINE_BUDGET_S):
        cache.evict()
        samples.append(side.run(len(samples) % len(question.inputs), calls)[0])
    return samples


def time_pairs(
    baseline: RunnerLink,
    candidate: RunnerLink,
    question: Question,
    cache: ColdCache,
    effort: Effort,
    *,
    budget_s: float,
    seed: int,
    give_up_ms: float | None = None,
) -> Samples:
    """ABBA pairs until the interval is narrow enough, the budget is over, or the candidate is clearly slower than
    `give_up_ms` and nobody needs to know by how much. Raises RunnerFailed.

    A timed output that differs from PyTorch's on the same inputs raises RunnerFailed too.
    """
    stream = random.Random(seed)
    start = time.perf_counter()
    calls = _warm_up([baseline, candidate])
    checked = set(stream.sample(range(effort.min_pairs), min(effort.checked, effort.min_pairs)))
    samples = Samples()
    while not _enough(samples, effort, time.perf_counter() - start, budget_s, give_up_ms):
        number = len(samples.pairs)
        slot = number % len(question.inputs)
        swaps = _swaps(question.inputs[slot], stream)
        for side in (baseline, candidate):
            side.perturb(slot, swaps)
        order = [baseline, candidate] if number % 2 == 0 else [candidate, baseline]
        taken: dict[int, tuple[float, float]] = {}
        for side in order:
            cache.evict()
            taken[id(side)] = side.run(slot, calls)
        ours, theirs = taken[id(baseline)], taken[id(candidate)]
        samples.pairs.append((ours[0], theirs[0]))
        samples.walls.append((ours[1] / calls, theirs[1] / calls))
        if number in checked:
            _compare_timed(baseline, candidate, question, number)
            samples.checked += 1
    samples.seconds = time.perf_counter() - start
    return samples


def _enough(samples: Samples, effort: Effort, spent_s: float, budget_s: float, give_up_ms: float | None) -> bool:
    count = len(samples.pairs)
    if count < effort.min_pairs:
        return False
    if count >= effort.max_pairs or spent_s > budget_s:
        return True
    if give_up_ms is not None and min(theirs for _, theirs in samples.pairs) > GIVE_UP_FACTOR * give_up_ms:
        return True
    estimate: Ratio = paired_ratio(samples.pairs)
    return count % 2 == 0 and estimate.half_width <= effort.half_width


def _warm_up(sides: Sequence[RunnerLink]) -> int:
    """Lets allocators and threads settle; returns how many calls make one sample."""
    shortest = min(min(side.run(0, 1)[0] for _ in range(WARM_UP_CALLS)) for side in sides)
    return 1 if shortest >= SHORT_MS else min(MAX_CALLS, int(SHORT_MS / max(shortest, 1e-4)) + 1)


def _swaps(packed: tuple[Message, int], stream: random.Random) -> list[tuple[int, int, int, int]]:
    """One exchange of two blocks in each floating input: (tensor, one place, other place, length), in elements."""
    found: list[tuple[int, int, int, int]] = []
    for index, item in enumerate(packed[0]["specs"]):
        spec = bundle.spec_from(item)
        elements = bundle.extent(spec)
        length = max(1, elements // BLOCK_SHARE)
        if not spec.dtype.startswith(("float", "bfloat")) or elements < 2 * length or 0 in spec.strides:
            continue
        one = stream.randrange(0, elements // 2 - length + 1)
        found.append((index, one, stream.randrange(elements // 2, elements - length + 1), length))
    return found


def _compare_timed(baseline: RunnerLink, candidate: RunnerLink, question: Question, number: int) -> None:
    """Both sides are within their own error of the truth, so within the sum of both of each other, and some slack."""
    wanted = baseline.collect(question.specs)
    given = candidate.collect(question.specs)
    for index, (output, truth, spec) in enumerate(zip(given, wanted, question.specs, strict=True)):
        own = question.errors[index]
        expected = comparison.expect(truth, truth, spec.dtype, None)
        limit = OutputError(6.0 * own.norm + 4.0 * norm_floor(spec.dtype, spec.numel), max(2.0, 6.0 * own.violation))
        error = comparison.measure(output, expected)
        if not accepts(error, limit):
            text = comparison.describe_mismatch(output, expected, limit, error)
            raise RunnerFailed(
                "cheating",
                f"output {index} of timed call {number} differs from PyTorch's on the same inputs, although checked "
                f"calls were right: {text}",
            )
