"""Collects the groups of one timing in the main process, decides when to stop, and makes the record. Free of torch.

A group is what a judge's `time` answers: pairs of samples from one fresh pair of processes.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Literal

from foundry.knowledge.candidate import Stage, Timing
from foundry.knowledge.reasons import refusal_of
from foundry.knowledge.ruling import clocks_agree
from foundry.knowledge.targets import TargetTraits
from foundry.tools.process.channel import Message
from foundry.tools.protocol.orders import COMPUTED_ANEW, OUT_OF_TURN, PROCESSES, UNDISTURBED
from foundry.tools.protocol.statistics import (
    MIN_GROUPS,
    Ratio,
    ScreenHistory,
    centre,
    combined_ratio,
    effort_of,
    relative_spread,
    signed_rank,
    two_speeds,
)

Check = Literal["none", "timed", "taken"]  # outputs compared in full: none, fetched after a call, copied at its end

GIVE_UP_FACTOR = 1.2  # times slower than the incumbent, for a screen to end early
SLOWED = 1.3  # factor by which the baseline must be slower beside a candidate, for it to be timed again alone
CLEARLY_SLOWED = 1.2  # lower bound of that factor's 95 % interval, for an objection
AGREEING = 0.75  # share of the groups that must show the same oddity: a busy machine shows it in some


def is_doubtful(timing: Timing) -> bool:
    """True if only measured times speak against the candidate; a busy machine could make an honest one look so.

    A screen's objection of work out of turn is not doubtful: it has asked more groups itself before.
    """
    if timing.problem:
        measured = (PROCESSES,) if timing.stage == "screen" else (PROCESSES, OUT_OF_TURN, UNDISTURBED, COMPUTED_ANEW)
        return timing.gate in measured
    return not clocks_agree(timing)


class Groups:
    """The answers of one candidate's groups. `incumbent_ms`: a screen ends early for one that is clearly slower.

    `reference_ms`: one call of the reference; `waited`: seconds that the device was waited for so far.
    """

    def __init__(
        self,
        stage: Stage,
        target: TargetTraits,
        screens: ScreenHistory,
        incumbent_ms: float | None = None,
        reference_ms: float = 0.0,
        *,
        waited: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Draws at random in which groups outputs are compared in full, and in which one operators are recorded; starts
        the clock."""
        self._stage, self._screens, self._incumbent_ms = stage, screens, incumbent_ms
        self._effort = effort_of(stage, target, reference_ms)
        self._stream = random.SystemRandom()
        least = self._effort.min_groups
        self._checks: list[Check] = ["timed" if number % 3 else "taken" for number in range(1, 1 + -(-least // 2))]
        self._checks += ["none"] * (least - len(self._checks))
        self._stream.shuffle(self._checks)
        self._recorded = self._stream.randrange(least)
        self._is_first = self._stream.sample(
            [True, False], 2
        )  # group parity: candidate prepared first; the first gets other memory
        self._waited = waited
        self._start = time.monotonic() - waited()
        self._pairs: list[list[tuple[float, float]]] = []
        self._walls: list[float] = []
        self._out_of_turn: list[str] = []
        self._slowed: list[float] = []

    @property
    def seconds(self) -> float:
        """Seconds spent so far, without waiting for the device."""
        return time.monotonic() - self._start - self._waited()

    @property
    def count(self) -> int:
        """Number of groups so far."""
        return len(self._pairs)

    def orders(self, ahead: int) -> dict[int, Message]:
        """Requests for the next groups by number: `ahead` of them, but beyond one none after the minimum number of
        groups."""
        last = max(self.count + 1, min(self.count + ahead, self._effort.min_groups))
        return {number: self._order(number) for number in range(self.count, last)}

    def _order(self, number: int) -> Message:
        """The request for one group: whether outputs are compared in full, operators recorded, and which side is
        prepared first."""
        check = self._checks[number] if number < len(self._checks) else self._stream.choice(self._checks)
        return {"check": check, "record": number == self._recorded, "candidate_first": self._is_first[number % 2]}

    def add(self, answer: Message) -> None:
        """Adds one group's answer: its pairs, its wall ratio, work out of turn, and how much slower the reference was
        beside it."""
        pairs = [(float(first), float(second)) for first, second in answer["pairs"]]
        self._pairs.append(pairs)
        self._walls.append(float(answer["wall_ratio"]))
        if answer["out_of_turn"]:
            self._out_of_turn.append(str(answer["out_of_turn"]))
        slowed, alone_ms = float(answer["slowed"]), float(answer.get("alone_ms", 0.0))
        if alone_ms > 0.0:
            afterwards = float(answer["reference_ms"]) / alone_ms
            slowed = min(slowed, afterwards) if slowed else afterwards
        if slowed:
            self._slowed.append(slowed)

    def is_enough(self) -> bool:
        """True if no more groups are needed. Groups that speak against the candidate are followed by as many as an
        objection needs."""
        if self._is_hopeless():
            return True
        if self._is_suspect() and self.count < MIN_GROUPS:
            return False
        return self._effort.is_enough(self._pairs, self.seconds)

    def timing(self) -> Timing:
        """The record; without a time when the groups show that the candidate tampered with it."""
        ratio = self._ratio()
        pairs = [pair for group in self._pairs for pair in group]
        gate, problem = self._objection()
        return Timing(
            stage=self._stage,
            candidate_ms=0.0 if problem else statistics.median(second for _, second in pairs),
            baseline_ms=0.0 if problem else statistics.median(first for first, _ in pairs),
            speedup=0.0 if problem else ratio.ratio,
            speedup_ci95=(0.0, 0.0) if problem else (ratio.low, ratio.high),
            pairs=len(pairs),
            noise=relative_spread([first for first, _ in pairs]),
            wall_ratio=statistics.median(self._walls),
            seconds=self.seconds,
            samples=[list(pair) for pair in pairs],
            ratios=[math.exp(centre(group)) for group in self._pairs],
            remarks=self._remarks(),
            problem=problem,
            outcome=refusal_of(gate) if problem else "correct",
            gate=gate,
        )

    def _ratio(self) -> Ratio:
        """The estimated speed-up with its interval; a screen's also uses the spread of earlier screens."""
        return self._screens.ratio(self._pairs) if self._stage == "screen" else combined_ratio(self._pairs)

    def _is_hopeless(self) -> bool:
        """True in a screen if every sample of the candidate is over GIVE_UP_FACTOR times slower than the incumbent."""
        if self._stage != "screen" or self._incumbent_ms is None or not self._pairs:
            return False
        return min(second for group in self._pairs for _, second in group) > GIVE_UP_FACTOR * self._incumbent_ms

    def _is_suspect(self) -> bool:
        """True if most groups so far show work out of turn."""
        return bool(self._out_of_turn) and len(self._out_of_turn) >= AGREEING * self.count

    def _objection(self) -> tuple[str, str]:
        """(gate, evidence) if most groups show that the candidate works out of turn, or that it slows the reference;
        else ("", "").

        One or two groups do not convict. On a machine that other programs share, a process can use half as much CPU
        time again for the same commands.
        """
        if self.count < MIN_GROUPS:
            return "", ""
        if self._is_suspect():
            return OUT_OF_TURN, self._out_of_turn[-1]
        slowed = signed_rank([math.log(factor) for factor in self._slowed if factor > 0.0])
        if slowed.low > CLEARLY_SLOWED:
            took = f"{slowed.ratio:.2f} times as long (95 % interval {slowed.low:.2f} to {slowed.high:.2f})"
            when = "before the candidate was loaded or after its process had ended"
            return UNDISTURBED, f"beside the candidate PyTorch took {took} as {when}"
        return "", ""

    def _remarks(self) -> tuple[str, ...]:
        """A remark if the candidate's times fall into two groups and the reference's, on the same inputs, do not."""
        ours = [first for group in self._pairs for first, _ in group]
        theirs = two_speeds([second for group in self._pairs for _, second in group])
        if theirs is None or two_speeds(ours) is not None:
            return ()
        return (f"the candidate has two speeds, {theirs[0]:.4g} ms and {theirs[1]:.4g} ms, PyTorch has one",)
