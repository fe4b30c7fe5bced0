"""ABBA timing of two runners, ordered by the judge. Runs in the judge (imports torch).

Before each sample the side gets inputs of new content, and the judge streams through a buffer larger than the
last-level cache. So both sides start cold and after the same history. The judge's clock gives the time: from its
command to the moment at which the kernel saw the answer sent, less what a message costs the reference, whose own clock
can be trusted. The candidate's own clock is only compared with it. On a GPU the device's events give the time and the
judge's clock must agree. Some timed outputs are fetched and compared with PyTorch's of the same pair.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from foundry.knowledge.opgraph import TensorSpec
from foundry.tools.grade.judge.freedom import refuse_if_wrong
from foundry.tools.grade.judge.link import RunnerFailed, RunnerLink, Sample
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.runner.timed_calls import CHANGEABLE_NAMES, elements
from foundry.tools.process.turns import Scheduling, describe_rescheduling, out_of_turn
from foundry.tools.protocol import comparison
from foundry.tools.protocol.rules import EPSILON, OutputError, accepts, norm_floor
from foundry.tools.protocol.statistics import SLOW_MS, TimingEffort
from foundry.tools.task.bundle import Parcel

EVICT_LIMIT_BYTES = 128 << 20
EVICT_FACTOR = 2  # size of the evicting buffer in last-level caches
SAMPLE_MS = 0.6  # shorter calls are made several in a row, each on inputs of its own
WARM_CALLS, WARM_MS, FEW_FAULTS = 12, 400.0, 64
SLOT_BYTES = 128 << 20  # most bytes of all input sets together
MAX_SLOTS = 16
FEW_BYTES = 8 << 20  # most bytes of all input sets of short calls together
MAX_SHIFT = 1 << 20
FACTORS = (0.75, 1.0)
ALONE_SAMPLES = 4
ALONE_BUDGET_MS = 120.0
PEEKED = 64  # elements of each output that are compared
PEEK_NORM = 0.03  # norm of their error over their own, at most: what is stale or missing is off by about 1
PEEK_TINY = 1e-6
PEEK_SHARE = 0.25  # share of integers that may differ before the call is judged as a checked one is
JUDGED_CALLS, JUDGED_SHARE = 2, 0.125  # judged calls in doubt: these first ones, then this share, at random

BASELINE_SAMPLES = 15
BASELINE_BUDGET_S = 2.5


@dataclass(frozen=True)
class Changes:
    """The changes of the inputs' content that the reference accepts: scaling, and rotating rows."""

    scaled: bool = True
    rotated: bool = True

    def draw(self, stream: random.Random) -> tuple[float, int]:
        """A random (factor, rows to rotate by); (1.0, 0) if nothing may change."""
        return stream.uniform(*FACTORS) if self.scaled else 1.0, stream.randrange(1, MAX_SHIFT) if self.rotated else 0


# (inputs as they were sent, their change, outputs) -> the fault of the outputs in words, or "". Raises TaskError.
TimedJudge = Callable[[Parcel, tuple[float, int], Sequence[torch.Tensor]], str]


@dataclass
class TimedInputs:
    """Inputs for timing both sides: input sets, specs of the outputs, and PyTorch's own errors on such inputs.

    `fresh` draws another input set, for inputs whose content cannot be changed in place (`changeable`; integers are
    not). `scalable`: the task declares no range that scaled values might leave. `rotatable`: no input has a structure
    (a triangle) that rows in other places would break. `changes` is None until it is found.
    """

    inputs: Sequence[Parcel]
    specs: list[TensorSpec]
    errors: list[OutputError]
    fresh: Callable[[], Parcel]
    changeable: bool = True
    scalable: bool = True
    rotatable: bool = True
    changes: Changes | None = None
    judge: TimedJudge | None = None
    sent: dict[int, Parcel] = field(default_factory=dict)
    doubts: int = 0

    @property
    def moved_bytes(self) -> int:
        """Bytes of one set of inputs and of the outputs."""
        return self.inputs[0].nbytes + sum(spec.nbytes for spec in self.specs)


@dataclass
class PreparedGroup:
    """A group of a timing that is ready: the links to its sides by name, "reference" and "candidate", each with its
    model and inputs, and what both are timed on."""

    case: Case
    timed: TimedInputs
    links: dict[str, RunnerLink] = field(default_factory=dict)
    alone: list[float] = field(default_factory=list)  # samples of the reference from before a candidate was there

    @property
    def reference(self) -> RunnerLink:
        """The link to the reference's runner."""
        return self.links["reference"]

    @property
    def candidate(self) -> RunnerLink:
        """The link to the candidate's runner."""
        return self.links["candidate"]

    def close(self, side: str) -> None:
        """Closes the link of one side, if there is one, and frees the memory shared with it."""
        link = self.links.pop(side, None)
        if link is not None:
            link.close()

    def close_all(self) -> None:
        """Closes the links of both sides."""
        for side in list(self.links):
            self.close(side)


@dataclass
class PairSamples:
    """Samples of both sides, in pairs (baseline, candidate). Times are ms a call."""

    own: list[tuple[float, float]] = field(
        default_factory=list
    )  # times of the runners' own clocks, or of device events
    walls: list[tuple[float, float]] = field(default_factory=list)  # times of the judge's clock, with the message in it
    alone: list[float] = field(default_factory=list)  # the baseline's before the candidate was loaded
    by_events: bool = False
    out_of_turn: str = ""  # evidence of work between turns
    checked: int = 0
    seconds: float = 0.0

    @property
    def reference_ms(self) -> float:
        """Median ms of a call of the baseline beside the candidate, by the baseline's own clock."""
        return statistics.median(first for first, _ in self.own)

    @property
    def slowed(self) -> float:
        """The baseline's time beside the candidate over its time before the candidate was loaded; 0 if that was not
        measured."""
        return self.reference_ms / statistics.median(self.alone) if self.alone else 0.0

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """The pairs (baseline ms, candidate ms) from which the speedup is computed."""
        if self.by_events or not self.own:
            return self.own
        cost = self._message_ms()
        return [(_without(first, cost), _without(second, cost)) for first, second in self.walls]

    @property
    def wall_ratio(self) -> float:
        """Ratio of the judge's time to the candidate's own; 1 for an honest candidate, and for fewer than 4 samples.

        A busy machine delays messages, those of the reference as well; a false clock is false in every sample. So of
        the middle half of the samples, less what the middle half of the reference's messages took, it takes the ratio
        nearest to 1.
        """
        if len(self.own) < 4:
            return 1.0
        least, most = self._message_quartiles_ms()
        times = [(wall, own) for (_, wall), (_, own) in zip(self.walls, self.own, strict=True)]
        low = statistics.quantiles([_without(wall, most) / own for wall, own in times], n=4)[0]
        high = statistics.quantiles([_without(wall, least) / own for wall, own in times], n=4)[2]
        return min(max(1.0, low), high)

    def _message_ms(self) -> float:
        """Time of a message in ms: the lower quartile, because a busy machine delays many messages."""
        return self._message_quartiles_ms()[0]

    def _message_quartiles_ms(self) -> tuple[float, float]:
        """Lower and upper quartile of the ms that a message takes, from the reference's samples, whose own clock is
        honest."""
        costs = [wall - own for (wall, _), (own, _) in zip(self.walls, self.own, strict=True)]
        if len(costs) < 2:
            return costs[0], costs[0]
        low, _, high = statistics.quantiles(costs, n=4, method="inclusive")
        return low, high


def _without(wall_ms: float, message_ms: float) -> float:
    """The judge's time less the time of a message, at least a tenth of the judge's time."""
    return max(wall_ms - message_ms, wall_ms / 10.0)


def check_scheduling(usual: Scheduling | None, baseline: RunnerLink, candidate: RunnerLink) -> None:
    """Raises RunnerFailed if the scheduler treats a process differently from before the candidate was loaded."""
    pids = [(os.getpid(), True)]
    pids += [(link.turns.pid, link is baseline) for link in (baseline, candidate) if link.turns is not None]
    for pid, is_reference in pids:
        if usual is not None and (words := describe_rescheduling(pid, usual, is_reference=is_reference)):
            raise RunnerFailed("cheating", words, gate="scheduling")


class ColdCache:
    """Evicts the caches before a call: the last-level cache, and the cores' own caches as far as threads move."""

    def __init__(self, cache_bytes: int, *, on_cpu: bool) -> None:
        """Allocates the buffer: EVICT_FACTOR times the last-level cache, at most EVICT_LIMIT_BYTES; none beside a
        GPU."""
        size = min(max(EVICT_FACTOR * cache_bytes, 1 << 20), EVICT_LIMIT_BYTES)
        self._buffer = torch.zeros(size // 4, dtype=torch.float32) if on_cpu else None

    @property
    def on_cpu(self) -> bool:
        """True if it evicts the CPU's caches, with a buffer in host memory."""
        return self._buffer is not None

    def evict(self) -> None:
        """On a CPU streams through the buffer, so that the next call finds the caches cold; a GPU runner does so
        itself."""
        if self._buffer is not None:  # a GPU runner flushes its own L2 before each event
            self._buffer.add_(1.0)


def slots_for(input_bytes: int) -> int:
    """Number of input sets to rotate among: more of small inputs, because short calls are made several in a row."""
    size = max(input_bytes, 1)
    return max(2, min(4, SLOT_BYTES // size), min(MAX_SLOTS, FEW_BYTES // size))


def is_changeable(parcel: Parcel) -> bool:
    """True if the inputs have floating tensors, whose content can be changed in place."""
    return any(spec.dtype in CHANGEABLE_NAMES and spec.nbytes and 0 not in spec.strides for spec in parcel.specs)


def time_alone(side: RunnerLink, timed: TimedInputs, cache: ColdCache) -> list[float]:
    """Samples (ms a call) of the baseline, cold, for a first look at it."""
    calls = warm_up([side], len(timed.inputs))
    samples: list[float] = []
    start = time.perf_counter()
    while len(samples) < 5 or (len(samples) < BASELINE_SAMPLES and time.perf_counter() - start < BASELINE_BUDGET_S):
        samples.append(_alone(side, timed, cache, len(samples), calls))
    return samples


def time_undisturbed(side: RunnerLink, timed: TimedInputs, cache: ColdCache) -> list[float]:
    """A few samples (ms a call) of the baseline while there is no candidate."""
    calls = warm_up([side], len(timed.inputs))
    samples = [_alone(side, timed, cache, 0, calls)]
    while len(samples) < ALONE_SAMPLES and sum(samples) * calls < ALONE_BUDGET_MS:
        samples.append(_alone(side, timed, cache, len(samples), calls))
    return samples


def _alone(side: RunnerLink, timed: TimedInputs, cache: ColdCache, number: int, calls: int) -> float:
    """One sample of one side in ms a call, with unchanged inputs and a cold cache; `number` chooses the input sets."""
    slots = window(number, calls, timed)
    side.perturb(slots, 1.0, 0)
    cache.evict()
    return side.run(slots).own_ms


def time_pairs(
    baseline: RunnerLink,
    candidate: RunnerLink,
    timed: TimedInputs,
    cache: ColdCache,
    effort: TimingEffort,
    *,
    seed: int,
    alone: Sequence[float] = (),
    check: str = "none",
) -> PairSamples:
    """Blocks of two pairs of opposite order until the effort's time for one pair of processes is spent.

    The number of pairs follows from the cost of the first block, not from its result: a rule that stops when the
    result looks good makes intervals too narrow. Each pair compares some elements of the outputs. `check` "timed" also
    compares all elements of one pair, a random one or the last; "taken" those of one more pair, copied the moment it
    returns. Raises RunnerFailed, with "wrong_result" if a timed output differs from PyTorch's on the same inputs.
    """
    stream = random.Random(seed)
    start = time.perf_counter()
    sides, order = (baseline, candidate), [baseline, candidate]
    timed.changes = timed.changes or find_changes(baseline, timed, stream)
    calls = warm_up(sides, len(timed.inputs))
    samples = PairSamples(alone=list(alone), by_events=not cache.on_cpu)
    timed.doubts = 0
    for number in range(effort.warm_pairs):  # as the pairs that count, with what they keep: each buffer is touched once
        draw = _Draw(number, calls, timed, stream)
        _pair(sides, order, timed, cache, draw)
        _peek(baseline, candidate, timed, draw)
    for side in sides:
        side.watch()
    begun = time.perf_counter()
    wanted, examined = effort.min_pairs, -1
    while len(samples.own) < wanted:
        number = len(samples.own)
        if number % 2 == 0:
            stream.shuffle(order)
        draw = _Draw(number, calls, timed, stream)
        ours, theirs = _pair(sides, order, timed, cache, draw)
        order.reverse()
        _peek(baseline, candidate, timed, draw)
        samples.own.append((ours.own_ms, theirs.own_ms))
        samples.walls.append((ours.wall_ms, theirs.wall_ms))
        if number == 1:
            wanted = effort.pairs_within((time.perf_counter() - begun) / 2)
            examined = stream.choice([wanted - 1, stream.randrange(1, wanted)])
        if number == examined and check != "none":
            taken = _Draw(number, calls, timed, stream) if check == "taken" else draw
            _examine(sides, order, timed, cache, draw=taken, check=check)
            samples.checked += 1
    if baseline.turns is not None and candidate.turns is not None:
        samples.out_of_turn = out_of_turn(baseline.turns, candidate.turns)
    samples.seconds = time.perf_counter() - start
    return samples


class _Draw:
    """The random choices for one pair of samples: input sets, change of their content, outputs to compare."""

    def __init__(self, number: int, calls: int, timed: TimedInputs, stream: random.Random) -> None:
        """Draws the choices for pair `number` with `calls` calls a sample."""
        self.number = number
        self.slots = window(number, calls, timed)
        self.change = (timed.changes or Changes()).draw(stream)
        self.keep = stream.randrange(calls)
        self.stream = stream


def _pair(
    sides: Sequence[RunnerLink],
    order: Sequence[RunnerLink],
    timed: TimedInputs,
    cache: ColdCache,
    draw: _Draw,
    *,
    take: bool = False,
) -> tuple[Sample, Sample]:
    """One sample of each side, (baseline, candidate); both have the same history right before it."""
    refresh(sides, timed, draw.slots)
    taken: dict[int, Sample] = {}
    for side in order:
        side.perturb(draw.slots, *draw.change)
        cache.evict()
        taken[id(side)] = side.run(draw.slots, draw.keep, take=take)
    return taken[id(sides[0])], taken[id(sides[1])]


def _examine(
    sides: Sequence[RunnerLink],
    order: Sequence[RunnerLink],
    timed: TimedInputs,
    cache: ColdCache,
    draw: _Draw,
    check: str,
) -> None:
    """Compares all outputs of the pair just timed, or of one more that is "taken"."""
    if check == "taken":
        _pair(sides, order, timed, cache, draw, take=True)
    _compare_timed(sides[0], sides[1], timed, draw, cache, again=check == "timed")


def window(number: int, calls: int, timed: TimedInputs) -> list[int]:
    """The input sets that sample `number` uses: the next `calls` of them each time."""
    return [(number * calls + place) % len(timed.inputs) for place in range(calls)]


def warm_up(sides: Sequence[RunnerLink], most: int) -> int:
    """Calls each side until allocators and threads have settled. Returns the number of calls in one sample, at most
    `most`.

    It is above 1 if a side is quick, unless the other is slow, because that makes as many calls.

    In a fresh process glibc's heap grows for several calls before large outputs come back to the same place. Each new
    page costs more than the arithmetic on it (31 ms against 8 ms for a softmax of 64 MB, measured).
    """
    shortest: list[float] = []  # ms a call, of each side
    for side in random.sample(sides, len(sides)):
        walls, quiet = list[float](), 0
        for _ in range(WARM_CALLS):
            sample = side.run([0])
            walls.append(sample.wall_ms)
            quiet = quiet + 1 if sample.faults < FEW_FAULTS else 0
            if quiet == 2 or sum(walls) > WARM_MS:
                break
        shortest.append(min(walls))
    if min(shortest) >= SAMPLE_MS:
        return 1
    wanted = int(SAMPLE_MS / max(min(shortest), 1e-4)) + 1
    return max(1, min(most, wanted, int(SLOW_MS / max(shortest))))


def find_changes(reference: RunnerLink, timed: TimedInputs, stream: random.Random) -> Changes:
    """The strongest change of content that the reference accepts: some operators refuse inputs that were changed."""
    scalable, rotatable = timed.scalable, timed.rotatable
    for changes in (
        Changes(scaled=scalable, rotated=rotatable),
        Changes(scaled=scalable, rotated=False),
        Changes(scaled=False, rotated=rotatable),
    ):
        try:
            reference.perturb([0], *changes.draw(stream))
            reference.run([0])
        except RunnerFailed as failed:
            if failed.outcome == "timeout":
                raise
            continue
        return changes
    reference.restore(0, 0, timed.inputs[0])
    return Changes(scaled=False, rotated=False)


def refresh(sides: Sequence[RunnerLink], timed: TimedInputs, slots: Sequence[int]) -> None:
    """Draws and sends new inputs to these slots, only if the content of inputs cannot be changed in place.

    Frees the inputs that were in the slots.
    """
    changes = timed.changes or Changes()
    if timed.changeable and (changes.scaled or changes.rotated):
        return
    for slot in slots:
        packed = timed.fresh()
        for side in sides:
            side.inputs(slot, 0, packed)
        if slot in timed.sent:
            timed.sent[slot].close()
        timed.sent[slot] = packed


def _compare_timed(
    baseline: RunnerLink, candidate: RunnerLink, timed: TimedInputs, draw: _Draw, cache: ColdCache, *, again: bool
) -> None:
    """Compares all elements of both sides' outputs of one timed call. Raises RunnerFailed if they are wrong.

    Each side is within its error of the truth, so they differ by at most the sum of both errors, with some slack. If
    they differ by more, the call is judged.

    The candidate's is fetched first, and `again` later, after something else: a late writer shows.
    """
    given = candidate.collect(timed.specs)
    wanted = baseline.collect(timed.specs)
    if again:
        cache.evict()
        _check_unchanged(given, candidate.collect(timed.specs), draw.number)
    for index, (output, truth, spec) in enumerate(zip(given, wanted, timed.specs, strict=True)):
        own = timed.errors[index]
        expected = comparison.expect(truth, truth, spec.dtype, None)
        limit = OutputError(6.0 * own.norm + 4.0 * norm_floor(spec.dtype, spec.numel), max(2.0, 6.0 * own.violation))
        error = comparison.measure(output, expected)
        if not accepts(error, limit):
            text = comparison.describe_mismatch(output, expected, limit, error)
            doubt = f"output {index} of timed call {draw.number} differs from PyTorch's: {text}"
            _judge_timed(candidate, timed, draw, doubt, given, is_whole=True)
            return


def _judge_timed(
    candidate: RunnerLink, timed: TimedInputs, draw: _Draw, doubt: str, outputs: list[torch.Tensor], *, is_whole: bool
) -> None:
    """Judges a timed call in doubt as a checked one is judged, by the truth of its inputs. Raises RunnerFailed.

    After JUDGED_CALLS doubts, only a random part of calls compared by some elements (not `is_whole`) is judged.
    """
    timed.doubts += 1
    is_one_of_many = not is_whole and timed.doubts > JUDGED_CALLS
    if timed.judge is not None and not (is_one_of_many and draw.stream.random() > JUDGED_SHARE):
        slot = draw.slots[draw.keep]
        judge = partial(timed.judge, timed.sent.get(slot, timed.inputs[slot]), draw.change)
        refuse_if_wrong(candidate, slot, timed.specs, judge, doubt=doubt, outputs=outputs)


def _peek(baseline: RunnerLink, candidate: RunnerLink, timed: TimedInputs, draw: _Draw) -> None:
    """Compares a few elements of both sides' outputs with a wide limit, to see if the call computed anything.

    If they differ by more, the call is judged. Raises RunnerFailed.
    """
    places = [
        [draw.stream.randrange(spec.numel) for _ in range(min(PEEKED, 4 * spec.numel))] if spec.numel else []
        for spec in timed.specs
    ]
    given, wanted = candidate.peek(places), baseline.peek(places)
    for index, spec in enumerate(timed.specs):
        pairs = [
            (one, other)
            for one, other in zip(given[index], wanted[index], strict=True)
            if math.isfinite(one) and math.isfinite(other)
        ]
        if 2 * len(pairs) < len(given[index]) and sum(map(math.isfinite, wanted[index])) > len(pairs):
            off, limit = math.inf, 0.0
        elif spec.dtype in EPSILON:
            size = math.sqrt(sum(other * other for _, other in pairs))
            error = math.sqrt(sum((one - other) ** 2 for one, other in pairs))
            limit = max(PEEK_NORM, 50.0 * timed.errors[index].norm)
            if error > limit * size:  # the few that are not zero behind a relu may be small beside all that are not
                size = max(size, math.sqrt(len(pairs)) * comparison.usual_size(baseline.collect(timed.specs)[index]))
            off = error / max(size, PEEK_TINY)
        else:
            off, limit = sum(one != other for one, other in pairs) / max(1, len(pairs)), PEEK_SHARE
        if off > limit:
            outputs = candidate.collect(timed.specs)
            _check_same(given, elements(outputs, places), draw.number)
            doubt = f"output {index} of timed call {draw.number}: {len(given[index])} elements picked at random are off"
            _judge_timed(candidate, timed, draw, f"{doubt} by {off:.2g} of their norm", outputs, is_whole=False)
            return


def _check_same(early: Sequence[Sequence[float]], late: Sequence[Sequence[float]], number: int) -> None:
    """Raises RunnerFailed (cheating) if the elements peeked at first differ from those fetched later."""
    pairs = ((one, other) for both in zip(early, late, strict=True) for one, other in zip(*both, strict=True))
    if not all(one == other or (math.isnan(one) and math.isnan(other)) for one, other in pairs):
        raise RunnerFailed("cheating", f"an output of timed call {number} changed after the call had returned")


def _check_unchanged(early: Sequence[torch.Tensor], late: Sequence[torch.Tensor], number: int) -> None:
    """Raises RunnerFailed (cheating) if outputs fetched later differ from those fetched first, bit for bit."""
    for index, (one, other) in enumerate(zip(early, late, strict=True)):
        if not torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)):
            raise RunnerFailed("cheating", f"output {index} of timed call {number} changed after the call had returned")
