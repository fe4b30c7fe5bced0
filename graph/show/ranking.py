"""Ranks the correct and clean candidates of a run, best first, and counts the outcomes of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from foundry.graph.run.run_directory import LAST, RunDirectory
from foundry.graph.show.effects import Evaluated
from foundry.knowledge.candidate import REFERENCE, Evaluation, Stage
from foundry.knowledge.merit import estimate_of, standing
from foundry.knowledge.step_words import spoken

SHOWN = 10  # candidates that a ranking lists
STAGE_WORDS: dict[Stage, str] = {"screen": "timed briefly", "full": "timed at length", "final": "proven"}
BY = "compared by one standard deviation below the measured speedup"


@dataclass(frozen=True)
class Placed:
    """A correct and clean candidate. `counts`: the speedup that it is compared by."""

    name: str
    stage: Stage
    speedup: float
    interval: tuple[float, float]
    pairs: int
    counts: float

    @property
    def words(self) -> str:
        """`c4, 1.75x (1.23 to 2.30; proven, 58 pairs)`."""
        low, high = self.interval
        return (
            f"{self.name}, {self.speedup:.2f}x ({low:.2f} to {high:.2f}; {STAGE_WORDS[self.stage]}, {self.pairs} pairs)"
        )

    @property
    def remark(self) -> str:
        """The remark on a kernel that is slower than PyTorch eager, or no faster; else ""."""
        return {"faster": "", "as fast": ", no faster than eager", "slower": ", slower than eager"}[
            standing(self.interval)
        ]


class Ranking:
    """The order in which a run stands, or ended: proven candidates first, by their proofs alone, as the winner is
    chosen; then the others, by all their timings."""

    def __init__(self, run: RunDirectory, outcomes: Callable[[], Mapping[str, Evaluated]]) -> None:
        """`outcomes` reads how each candidate's latest evaluation ended."""
        self._run = run
        self._outcomes = outcomes
        self.winner = run.get("winner")

    @cached_property
    def _proofs(self) -> dict[str, Placed | None]:
        """Every finalist by its proof; None for one that failed it."""
        rows = self._run.database.run("SELECT candidate FROM evaluations WHERE stage = 'final' ORDER BY at")
        return {name: _placed(self._run.records(name, ("final",))) for (name,) in rows}

    @cached_property
    def names(self) -> list[str]:
        """Ids of the candidates in order: the winner, other proven ones by their proofs, then the rest by all
        timings."""
        proven = [item for item in self._proofs.values() if item is not None]
        proven.sort(key=lambda item: (item.name != self.winner, -item.counts))
        return [item.name for item in proven] + [name for name in self._run.ranking(LAST) if name not in self._proofs]

    def placed(self, name: str) -> Placed | None:
        """A candidate as it is compared; None where something speaks against it."""
        return self._proofs[name] if name in self._proofs else _placed(self._run.records(name))

    def lines(self, most: int = SHOWN) -> list[str]:
        """The first `most` candidates, a line each, then how many more there are, why others have no place, and by what
        they are ranked."""
        shown = [item for item in map(self.placed, self.names[:most]) if item is not None]
        lines = [f"{number}. {self._line(item)}" for number, item in enumerate(shown, 1)]
        left = len(self.names) - len(shown)
        lines += [f"and {left} more"] if left else []
        lines += [f"Without a place: {failed}."] if (failed := self._failed()) else []
        if not shown:
            return ["No candidate is correct and clean yet.", *lines]
        return [*lines, f"Candidates are {BY}. `why {shown[-1].name}` says why one lost."]

    def _line(self, item: Placed) -> str:
        """A proven candidate's line: its times, and that it won or by which speedup it counts."""
        if item.name == self.winner:
            return f"{item.words}: the winner{item.remark}"
        return f"{item.words}, counts {item.counts:.2f}x"

    def why(self, name: str) -> list[str]:
        """Why a candidate stands where it does, beside the first; nothing for one without a place."""
        own, first = self.placed(name), self.placed(self.names[0]) if self.names else None
        if own is None or first is None or name not in self.names:
            return []
        place = f"It is number {self.names.index(name) + 1} of {len(self.names)} that are correct and clean"
        if name == first.name:
            return [f"{place}: {'it won' if name == self.winner else 'the best so far'}{own.remark}."]
        best = "The winner" if first.name == self.winner else "The best so far"
        lines = [f"{place}. {best} is {first.words}{first.remark}."]
        if first.stage == "final" != own.stage:
            return [*lines, self._why_unproven(own)]
        line = f"{BY.capitalize()} it counts {own.counts:.2f}x, {first.name} {first.counts:.2f}x"
        overlap = own.interval[1] > first.interval[0]
        return [*lines, f"{line}; the 95 % intervals overlap, so this may be noise." if overlap else f"{line}."]

    def _why_unproven(self, own: Placed) -> str:
        """The sentence why a candidate was not proven: it came too late, or counted less than those that were."""
        screened = [_placed(self._run.records(name, ("screen", "full"))) for name in self._proofs]
        least = min((item.counts for item in screened if item is not None), default=0.0)
        if own.counts > least:
            return f"It was not proven: it came too late, or no longer promised to beat {self.names[0]}'s proof."
        counted = f"{BY} it counted {own.counts:.2f}x, those that were proven {least:.2f}x and more"
        return f"It was not proven: {counted}."

    def _failed(self) -> str:
        """How many of the others ended how: `2 wrong result, 1 compile error`."""
        placed = {*self.names, REFERENCE}
        failed = Counter(found.outcome for name, found in self._outcomes().items() if name not in placed)
        return ", ".join(f"{count} {spoken(outcome)}" for outcome, count in failed.most_common())


def _placed(records: Sequence[Evaluation]) -> Placed | None:
    """The place of a candidate by its last record and the estimate from all; None without an accepted timing."""
    found = estimate_of(records)
    timing = records[-1].timing if records else None
    if found is None or timing is None:
        return None
    name = records[-1].candidate.id
    return Placed(
        name=name,
        stage=timing.stage,
        speedup=timing.speedup,
        interval=timing.speedup_ci95,
        pairs=timing.pairs,
        counts=found.cautious,
    )
